// What the jobs of a member hold, next to the limits.
import type { Member } from "@/shared/api/types";
import { hasOwnLimit, useWords } from "./limits";

export function Use({ member }: { member: Member }) {
  return (
    <>
      {useWords(member)}
      {hasOwnLimit(member) && <div className="small muted">own limit</div>}
    </>
  );
}
