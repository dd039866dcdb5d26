// Idempotency keys: a repeated request with the same key has no further effect.

/** Browsers provide `crypto.randomUUID` only on HTTPS and on localhost. */
export function randomKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
