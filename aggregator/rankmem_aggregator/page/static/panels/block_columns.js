// The columns of the table of blocks: how each is shown, and its exact value for copying.

import * as units from "../units.js";

const right = "right";
const plain = (name) => ({ text: (row) => row[name] ?? units.NOTHING, copied: (row) => row[name] ?? "" });
const bytes = (name) => ({ align: right, text: (row) => units.bytes(row[name]), copied: (row) => row[name] ?? "" });
const instant = (name) => ({ align: right, text: (row) => units.time(row[name]), copied: (row) => row[name] ?? "" });
const span = (name) => ({ align: right, text: (row) => units.duration(row[name]), copied: (row) => row[name] ?? "" });
const yes = (name) => ({
  text: (row) => (row[name] === null ? units.NOTHING : row[name] ? "yes" : "no"),
  copied: (row) => (row[name] === null ? "" : row[name] ? "yes" : "no"),
});

// `name` is what the server sorts by.
export function blockColumns() {
  return [
    { name: "size", title: "size", hint: "requested bytes; copied in bytes", ...bytes("size_bytes") },
    { name: "category", title: "category", hint: "what the bytes meant then", ...plain("category") },
    { name: "operator", title: "operator", hint: "that allocated", ...plain("operator") },
    { name: "module", title: "module", hint: "innermost around it", ...plain("module") },
    { name: "line", title: "line", isPath: true, hint: "of the project, nearest to the operator", ...plain("line") },
    { name: "forward_line", title: "forward line", isPath: true, hint: "of a block of backward: that of its forward call", ...plain("forward_line") },
    { name: "phase", title: "phase", ...plain("phase") },
    { name: "step", title: "step", align: right, ...plain("step") },
    { name: "age", title: "age", hint: "from its alloc to the instant, or to its end; copied in ns", ...span("age_ns") },
    { name: "life", title: "life", hint: "from its alloc to its end; copied in ns", ...span("life_ns") },
    { name: "allocated", title: "allocated at", hint: "since the session's start; copied in ns", ...instant("allocated_ns") },
    { name: "freed", title: "freed at", hint: "given back to the allocator", ...instant("freed_ns") },
    { name: "free_requested", title: "free requested at", hint: "its tensor was freed, another stream may still have used it", hidden: true, ...instant("free_requested_ns") },
    { name: "stream", title: "stream", align: right, hidden: true, ...plain("stream") },
    { name: "component", title: "component", hidden: true, ...plain("component") },
    { name: "pool", title: "pool", hidden: true, ...plain("pool") },
    { name: "annotation", title: "annotation", hidden: true, ...plain("annotation") },
    { name: "address", title: "address", hidden: true, ...plain("address") },
    { name: "id", title: "id", align: right, hint: "the event that allocated it; negative: before the recording", hidden: true, ...plain("allocation_id") },
    { name: "stack", title: "stack", align: right, hidden: true, ...plain("stack_id") },
    { name: "preexisting", title: "older", hint: "than the recording", hidden: true, ...yes("preexisting") },
    { name: "recomputed", title: "recomputed", hint: "while a checkpoint computed forward again", hidden: true, ...yes("recomputed") },
  ];
}
