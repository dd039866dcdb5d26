// A caller's own name of one request, under which a repeat is harmless.

/** `crypto.randomUUID` is only there on HTTPS and on the own machine. */
export function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
