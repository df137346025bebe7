// Which panels of a running session need not ask again when something was stored: those whose questions are about
// ranges, or events of a log, that lie before all that is new. Logs only grow at their ends. Every other panel asks.

const RANGES = new Set(["curve", "heat"]); // what is in a range of time does not depend on what comes later
const INSTANTS = new Set(["flame", "segments"]); // nor what was alive after an event

// What a panel's answers rest on beside its questions: the event of the chosen rank's peak, and what is missing.
export function basis(job, chosen) {
  return { peak: chosen?.peak_seq ?? null, missing: JSON.stringify([job?.answer.complete, job?.answer.missing]) };
}

// Whether the answers that the panel has are those that it would get.
// asked and before: the questions they are of, as Panel keeps them, and their basis; now and after: those that it
// would ask; newNs: nothing that is new is earlier.
export function lasts(asked, before, now, after, newNs) {
  if (!Array.isArray(asked) || JSON.stringify(asked) !== JSON.stringify(now) || before.missing !== after.missing) return false;
  return now.every((question) => isBefore(question, newNs, before.peak !== null && before.peak === after.peak));
}

// Whether the questions are those that were asked before, in intervals as long, of a range that may have grown at its end.
export function goOn(asked, now) {
  const text = (questions) => JSON.stringify(questions.map(([path, parameters]) => [path, { ...parameters, to: 0, bins: 0, px: 0 }, widthOf(parameters)]));
  return Array.isArray(asked) && Array.isArray(now) && text(asked) === text(now);
}

function widthOf({ from, to, bins, px }) {
  return (to - from + 1) / (bins ?? px ?? 1);
}

function isBefore([path, parameters], newNs, isSamePeak) {
  const route = path.split("/").slice(2).join("/");
  if (RANGES.has(route)) return Number.isFinite(parameters.to) && parameters.to < newNs;
  return INSTANTS.has(route) && isOfOne(parameters) && ((parameters.seq ?? null) !== null || isSamePeak);
}

// One rank's blocks alive after an event; what they mean may be told later.
function isOfOne({ rank = null, job = null, ranks = null, which = "alive", category = "0", pick = null }) {
  return rank !== null && job === null && ranks === null && (which ?? "alive") === "alive" && String(category ?? 0) === "0" && !/(^|;)category:/.test(pick ?? "");
}
