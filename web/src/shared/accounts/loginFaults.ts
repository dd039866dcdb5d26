// Why a login through the issuer failed: the server sends a code, never a text of the issuer.

const FAULTS: Record<string, string> = {
  state:
    "This login is no longer valid: it was used, is older than ten minutes, or began in another browser. Log in again.",
  denied: "The login was cancelled, or the issuer refused it.",
  issuer_down:
    "The issuer does not respond, so no new login is possible now. Sessions that are open go on.",
  invalid: "The reply of the issuer is not valid. An admin finds the reason in the server’s log.",
  busy: "Too many logins are in progress. Try again in some minutes.",
  sign_up:
    "You have no user here. An admin can invite you, or give one of your groups a role in a project.",
  disabled: "Your user is disabled. An admin can enable it.",
  taken: "This identity belongs to another user, or your user has another identity.",
  ended: "The session or the invitation with which the login began has ended.",
};

/** Return the text for a code of a failed login; null without a code. */
export function loginFault(code: string | null): string | null {
  if (code === null) return null;
  return Object.hasOwn(FAULTS, code) ? (FAULTS[code] ?? null) : "The login failed. Log in again.";
}
