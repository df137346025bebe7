// Anything else: a statement of DuckDB's dialect, what it can read, and its rows.

import { sqlPanel } from "../panels/sql.js";

export function mount(root) {
  const part = sqlPanel(root);
  return () => part.destroy();
}
