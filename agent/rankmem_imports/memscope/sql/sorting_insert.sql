-- Question: How does a row get there?
-- Parameters: those of memscope_rows.Row, by their names.
INSERT INTO row
VALUES (
    :number, :event, :kind, :name, :time_ns, :process, :thread, :device, :address, :attributes, :stack
)
