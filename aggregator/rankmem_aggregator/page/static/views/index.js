// The views, in the order of the navigation: each has a name (of the link), a title, and mount(root), which builds it
// for the loaded job and returns what takes it down.

import job from "./job.js";
import sessions from "./sessions.js";
import sql from "./sql.js";

export const VIEWS = [sessions, job, sql];
export const FIRST = "job";
