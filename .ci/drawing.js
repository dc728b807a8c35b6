// The texts of a drawing that was written as SVG: those that lie on each other or leave the drawing.
// A text may be turned, so it is a box with four corners anywhere.
(() => {
  const sheet = document.documentElement.getBoundingClientRect(), found = [];

  // The corners of a text, in pixels of the screen.
  const corners = group => {
    const {x, y, width, height} = group.firstElementChild.getBBox();
    const turn = group.firstElementChild.getScreenCTM();
    return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]
      .map(([px, py]) => new DOMPoint(px, py).matrixTransform(turn));
  };
  // By how far two boxes have to be moved apart along the directions of the sides of the first.
  const depth = (one, other) => Math.min(...[[0, 1], [1, 2]].map(([from, to]) => {
    const dx = one[to].x - one[from].x, dy = one[to].y - one[from].y, long = Math.hypot(dx, dy);
    const spans = [one, other].map(box => box.map(p => (p.x * dx + p.y * dy) / long));
    return Math.min(...spans.map(s => Math.max(...s))) - Math.max(...spans.map(s => Math.min(...s)));
  }));

  const texts = [...document.querySelectorAll('g[id^="text_"]')].filter(group => {
    const {width, height} = group.getBoundingClientRect();
    return width > 0 && height > 0;
  }).map(group => {
    const comment = [...group.childNodes].find(node => node.nodeType === Node.COMMENT_NODE);
    return {said: comment ? comment.data.trim() : group.id, box: corners(group)};
  });
  texts.forEach(({said, box}, i) => {
    if (box.some(p => p.x < -1 || p.y < -1 || p.x > sheet.right + 1 || p.y > sheet.bottom + 1))
      found.push(`"${said}" leaves the drawing`);
    for (const other of texts.slice(i + 1))
      if (Math.min(depth(box, other.box), depth(other.box, box)) > 1)
        found.push(`"${said}" lies on "${other.said}"`);
  });
  return found;
})()
