// Names that may stand where the cursor is in a statement: tables, views, macros, and the columns of those it names.

const WORD = /[A-Za-z_][\w.]*$/;
const MOST = 12;

// The schema: objects by name, each {kind, name, call, meaning, columns: [{name, type, meaning}]}.
export function schemaOf(rows) {
  const found = new Map();
  for (const row of rows) {
    if (!found.has(row.name)) found.set(row.name, { kind: row.kind, name: row.name, call: row.call, meaning: row.meaning, columns: [] });
    found.get(row.name).columns.push({ name: row.column, type: row.type, meaning: row.column_meaning });
  }
  return found;
}

// The word before the cursor that can be completed.
export function wordBefore(text, cursor) {
  return WORD.exec(text.slice(0, cursor))?.[0] ?? "";
}

// What completes the word: columns of the objects that the statement names, then objects; texts to insert.
export function completions(schema, text, cursor) {
  const word = wordBefore(text, cursor).toLowerCase();
  if (word.length < 2) return [];
  const named = new Set(text.toLowerCase().match(/[a-z_][\w.]*/g) ?? []);
  const begins = new Map();
  const offer = (name, insert, what) => {
    if (/^[\w.]+$/.test(name) && name.toLowerCase().startsWith(word) && name.toLowerCase() !== word && !begins.has(name)) {
      begins.set(name, { insert, what });
    }
  };
  const aliased = word.includes(".") && !schema.has(word.split(".")[0]) && !word.startsWith("mindstudio.") ? word.split(".")[0] : null;
  for (const each of schema.values()) {
    if (!named.has(each.name.toLowerCase())) continue;
    for (const column of each.columns) {
      if (aliased) offer(`${aliased}.${column.name}`, `${aliased}.${column.name}`, `${each.name}: ${column.meaning}`);
      else offer(column.name, column.name, `${each.name}: ${column.meaning}`);
    }
  }
  for (const each of schema.values()) offer(each.name, each.call, `${each.kind}: ${each.meaning}`);
  return [...begins].slice(0, MOST).map(([name, { insert, what }]) => ({ name, insert, what }));
}
