// The views, in the order of the navigation: each has a name (of the link), a title, and mount(root), which builds it
// for the loaded job and returns what takes it down.

import blocks from "./blocks.js";
import diff from "./diff.js";
import fit from "./fit.js";
import job from "./job.js";
import mindstudio from "./mindstudio.js";
import model from "./model.js";
import oom from "./oom.js";
import peak from "./peak.js";
import rank from "./rank.js";
import segments from "./segments.js";
import sessions from "./sessions.js";
import sql from "./sql.js";
import steps from "./steps.js";
import trust from "./trust.js";

export const VIEWS = [sessions, job, rank, blocks, peak, steps, diff, segments, oom, fit, model, sql, trust, mindstudio];
export const FIRST = "job";
