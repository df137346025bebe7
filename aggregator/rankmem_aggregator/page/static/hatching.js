// Hatching, for what is not known.

// Thin diagonal lines within a box, `apart` pixels from one another, as lines: a picture of lines and texts has them too.
export function hatchBox(g, { x, y, width, height }, apart) {
  g.save();
  g.beginPath();
  g.rect(x, y, width, height);
  g.clip();
  g.beginPath();
  for (let at = x - height; at < x + width; at += apart) {
    g.moveTo(at, y + height);
    g.lineTo(at + height, y);
  }
  g.stroke();
  g.restore();
}
