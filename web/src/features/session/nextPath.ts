/** Return the path to go to after the login: one of this site, never an address of another. */
export function nextPath(asked: string | null): string {
  const isOwn = asked !== null && /^\/(?![/\\])/.test(asked);
  return isOwn ? asked : "/jobs";
}
