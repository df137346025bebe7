// Texts for spreadsheets, which run some texts as formulas.

const DANGEROUS = /^[\s\p{C}]*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r]/u;
const NUMBER = /^-?[\d.,]+$/;

// The text, behind an apostrophe if a spreadsheet would run it; numbers stay numbers.
export function noFormula(text) {
  return DANGEROUS.test(text) && !NUMBER.test(text) ? `'${text}` : text;
}
