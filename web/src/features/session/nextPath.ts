/** Return the path to open after the login: always a path of this site. */
export function nextPath(asked: string | null): string {
  const isOwn = asked !== null && /^\/(?![/\\])/.test(asked);
  return isOwn ? asked : "/jobs";
}
