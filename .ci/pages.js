// What a page looks like where it is shown: its width, what scrolls sideways, texts on top of each
// other, colours, and pictures. pages.py says which of it is a fault.
(() => {
  const root = document.documentElement;
  const found = {
    width: root.scrollWidth, scrolls: [], overlaps: [], cut: [],
    faint: [], small: [], pictures: [],
  };
  const words = text => text.trim().replace(/\s+/g, " ").slice(0, 40);
  const numbers = colour => (colour.match(/[\d.]+/g) || []).map(Number);

  // What a function says of an element, asked once.
  const once = ask => {
    const known = new Map();
    return element => {
      if (!known.has(element)) known.set(element, ask(element));
      return known.get(element);
    };
  };

  // Where the text of an element is seen: what holds it may show only a part of what is in it.
  const everywhere = {left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity};
  const window_of = once(element => {
    if (!element || element === root || element === document.body) return everywhere;
    const found = {...window_of(element.parentElement)};
    const style = getComputedStyle(element), holder = element.getBoundingClientRect();
    if (style.overflowX !== "visible") {
      found.left = Math.max(found.left, holder.left);
      found.right = Math.min(found.right, holder.right);
    }
    if (style.overflowY !== "visible") {
      found.top = Math.max(found.top, holder.top);
      found.bottom = Math.min(found.bottom, holder.bottom);
    }
    return found;
  });
  const seen = (box, element) => {
    const {left, right, top, bottom} = window_of(element);
    return {
      left: Math.max(box.left, left), right: Math.min(box.right, right),
      top: Math.max(box.top, top), bottom: Math.min(box.bottom, bottom),
    };
  };

  const over = (front, back) => {
    const [r, g, b, a = 1] = front;
    return [r, g, b].map((value, i) => value * a + back[i] * (1 - a));
  };
  const behind = once(element => {
    if (!element) return [255, 255, 255];
    return over(numbers(getComputedStyle(element).backgroundColor), behind(element.parentElement));
  });
  const light = colour => {
    const [r, g, b] = colour.map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  for (const each of document.body.querySelectorAll("*")) {
    const style = getComputedStyle(each);
    if (each.clientWidth === 0 || each.scrollWidth <= each.clientWidth + 1) continue;
    if (!each.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const kind = each.querySelector("table") ? "table" : each.tagName.toLowerCase();
    if (["auto", "scroll"].includes(style.overflowX))
      found.scrolls.push([kind, each.scrollWidth, each.clientWidth, words(each.innerText)]);
    else if (style.overflowX !== "visible" && each.innerText.trim())
      found.cut.push(words(each.innerText));
  }

  const boxes = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode());) {
    const element = node.parentElement, text = words(node.data);
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) continue;
    if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const range = document.createRange();
    range.selectNodeContents(node);
    let shown = false;
    for (const rect of range.getClientRects()) {
      const box = seen(rect, element);
      if (box.right - box.left < 1 || box.bottom - box.top < 1) continue;
      shown = true;
      // Letters are about as high as the font is large; the rest of a line's box is empty.
      const spare = Math.max(0, (box.bottom - box.top - size) / 2);
      boxes.push({...box, top: box.top + spare, bottom: box.bottom - spare, node, text});
    }
    if (!shown) continue;
    found.small.push([size, text]);
    const back = behind(element);
    const ratio = contrast(over(numbers(style.color), back), back);
    const large = size >= 24 || (size >= 18.6 && parseInt(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.faint.push([Math.round(ratio * 10) / 10, text]);
  }
  found.small = found.small.sort((a, b) => a[0] - b[0]).slice(0, 1);

  boxes.sort((a, b) => a.top - b.top);
  for (let i = 0; i < boxes.length; i++)
    for (let k = i + 1; k < boxes.length && boxes[k].top < boxes[i].bottom - 2; k++) {
      const a = boxes[i], b = boxes[k];
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - b.top;
      if (a.node !== b.node && wide > 2 && high > 2) found.overlaps.push([a.text, b.text]);
    }

  for (const image of document.images) {
    if (!image.checkVisibility()) continue;
    const said = !image.getAttribute("alt") ? "no text in its place" : "";
    found.pictures.push([image.src, image.clientWidth, image.naturalWidth === 0 ? "not there" : said]);
  }
  return found;
})()
