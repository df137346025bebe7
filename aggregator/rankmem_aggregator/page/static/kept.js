// A page that is one file: the answers that it holds, found by the question. See page/one_file.py.

const place = document.getElementById("answers");
const kept = place ? JSON.parse(place.textContent) : null;

// Whether this page is one file, without a server.
export function isFile() {
  return kept !== null;
}

// What the file is: {session, state, holds, missing, written, rankmem, notKept}.
export function file() {
  return kept;
}

// Answers whose points have times: a part of the kept range is drawn from the whole, as coarse as that is.
const WITH_TIMES = ["curve", "groups", "spans", "ranks_curve", "mindstudio_curve"];

// The bytes of an answer, or null where the file has none.
export async function answer(path, parameters) {
  const route = path.split("/").pop();
  const whole = { ...parameters, from: kept.from, to: kept.to };
  const packed = kept.answers[keyOf(path, parameters)] ?? (WITH_TIMES.includes(route) ? kept.answers[keyOf(path, whole)] : undefined);
  if (packed === undefined) return null;
  const bytes = Uint8Array.from(atob(packed), (char) => char.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

// As key_of() in one_file.py.
export function keyOf(path, parameters) {
  const route = path.startsWith("s/") ? path.split("/").slice(2).join("/") : path;
  const full = { ...(kept.defaults[route] ?? {}) };
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") full[name] = value;
  }
  const names = Object.keys(full).filter((name) => !kept.notInKeys.includes(name) && full[name] !== "").sort();
  return `${route}?${names.map((name) => `${name}=${full[name]}`).join("&")}`;
}
