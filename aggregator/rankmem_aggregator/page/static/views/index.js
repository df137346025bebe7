// The views, in the order of the navigation: each has a name (of the link), a title, and a module, which is asked for when
// the view is first shown. Its mount(root) builds it for the loaded job and returns what takes it down.

export const VIEWS = [
  { name: "sessions", title: "Sessions", needsJob: false, load: () => import("./sessions.js") },
  { name: "job", title: "Job", needsJob: true, load: () => import("./job.js") },
  { name: "rank", title: "Rank", needsJob: true, load: () => import("./rank.js") },
  { name: "blocks", title: "Blocks", needsJob: true, load: () => import("./blocks.js") },
  { name: "peak", title: "Peak", needsJob: true, load: () => import("./peak.js") },
  { name: "steps", title: "Steps", needsJob: true, load: () => import("./steps.js") },
  { name: "diff", title: "Diff", needsJob: true, load: () => import("./diff.js") },
  { name: "segments", title: "Segments", needsJob: true, load: () => import("./segments.js") },
  { name: "oom", title: "OOM", needsJob: true, load: () => import("./oom.js") },
  { name: "fit", title: "Fit", needsJob: true, load: () => import("./fit.js") },
  { name: "model", title: "Model", needsJob: true, load: () => import("./model.js") },
  { name: "sql", title: "SQL", needsJob: false, load: () => import("./sql.js") },
  { name: "trust", title: "Trust", needsJob: true, load: () => import("./trust.js") },
  { name: "mindstudio", title: "MindStudio", needsJob: true, load: () => import("./mindstudio.js") },
];
export const FIRST = "job";
