// Appended to a page by test_built_site.py: writes texts below the contrast of WCAG 2.2 AA, as JSON, to the body.
const channels = (color) => {
  const parts = color.match(/[\d.]+/g).map(Number);
  return color.startsWith("color(") ? [...parts.slice(0, 3).map((c) => c * 255), parts[3] ?? 1] : [...parts.slice(0, 3), parts[3] ?? 1];
};
const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const luminance = (color) => {
  const [r, g, b] = color.slice(0, 3).map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const background = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(channels(getComputedStyle(e).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
};
addEventListener("load", () =>
  setTimeout(() => {
    const found = {};
    let texts = 0;
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      const style = getComputedStyle(element);
      if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
      if (element.closest("script, style, noscript, .headerlink, .md-search__output, .md-top, .md-skip")) continue;
      texts += 1;
      const below = background(element);
      const [a, b] = [luminance(over(channels(style.color), below)), luminance(below)].sort((x, y) => y - x);
      const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
      if ((a + 0.05) / (b + 0.05) < (large ? 3 : 4.5))
        found[`${element.tagName}.${element.className} ${style.color} on ${below}`] = ((a + 0.05) / (b + 0.05)).toFixed(2);
    }
    const result = { texts, found, width: document.documentElement.scrollWidth, window: innerWidth };
    document.body.textContent = `<<${JSON.stringify(result)}>>`;
  }, 300),
);
