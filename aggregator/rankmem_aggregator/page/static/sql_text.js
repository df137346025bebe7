// The statement of the SQL view: in the link where it fits, else in this tab; and those that ran before, in this browser.

import { announce } from "./dom.js";
import * as state from "./state.js";

const HISTORY = "rankmem-sql-history";
const HISTORY_MAX = 50;
export const TEXT_MAX = 128 * 1024;

let tooLong = "";

export function text() {
  return state.get("sql") ?? tooLong;
}

// Shows a statement in the SQL view, as a table at first; its result follows.
export function open(statement, show = null) {
  if (!statement) {
    announce("this panel has no SQL yet");
    return;
  }
  tooLong = statement;
  state.change({ view: "sql", sql: statement, show });
  if (state.get("sql") === null) announce("the statement is too long for the link");
  else tooLong = "";
}

// Statements that ran, the latest first.
export function history() {
  try {
    const kept = JSON.parse(localStorage.getItem(HISTORY) ?? "[]");
    return Array.isArray(kept) ? kept.filter((each) => typeof each === "string") : [];
  } catch {
    return [];
  }
}

export function remember(statement) {
  const kept = [statement, ...history().filter((each) => each !== statement)].slice(0, HISTORY_MAX);
  try {
    localStorage.setItem(HISTORY, JSON.stringify(kept));
  } catch {
    // full, or forbidden: then there is no history
  }
}

export function forget() {
  localStorage.removeItem(HISTORY);
}
