-- Question: Is a word in one of the names of a block?
-- Parameters:
--   word (text): in lower case; NULL is in every block
--   operator, module, category, line, forward_line (text): the block's names, NULL where it has none
-- Columns:
--   one value: true if the word is in one of them, without regard to case; NULL or false if not
-- Scatter: none
CREATE OR REPLACE MACRO has_word(word, operator, module, category, line, forward_line) AS
word IS NULL
OR contains(lower(operator), word)
OR contains(lower(module), word)
OR contains(lower(category), word)
OR contains(lower(line), word)
OR contains(lower(forward_line), word);

COMMENT ON MACRO has_word IS 'Whether a word is in one of the names of a block, without regard to case.';
