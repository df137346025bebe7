-- Question: Where do rows of a dump wait to be sorted? Columns: those of memscope_rows.Row.
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE TABLE row (number, event, kind, name, time_ns INTEGER, process, thread, device, address, attributes, stack);
