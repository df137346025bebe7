// The views, in the order of the navigation: each has a name (of the link), a title, and mount(root), which builds it
// for the loaded job and returns what takes it down.

import blocks from "./blocks.js";
import job from "./job.js";
import rank from "./rank.js";
import sessions from "./sessions.js";

export const VIEWS = [sessions, job, rank, blocks];
export const FIRST = "job";
