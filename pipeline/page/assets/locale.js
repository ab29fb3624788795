// Browsers in a POSIX locale name a language that their own Intl refuses, and uPlot asks for it.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en" });
}
