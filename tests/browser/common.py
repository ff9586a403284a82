"""What tests of pages share."""

CONTRAST = """
const paint = colour => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = colour => colour.slice(0, 3).map(c => c / 255)
  .map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
const behind = element => {
  for (; element; element = element.parentElement) {
    const colour = paint(getComputedStyle(element).backgroundColor);
    if (colour[3] === 255) return colour;
  }
};
const element = arguments[0];
const [a, b] = [light(paint(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
return (a + .05) / (b + .05);
"""
