// Idempotency keys: a repeated request with the same key has no further effect.

/** `crypto.randomUUID` is only there on HTTPS and on the own machine. */
export function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
