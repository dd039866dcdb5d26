// A role in a project as a label.
import type { ProjectRole } from "@/shared/api/types";
import { Badge, type Tone } from "@/shared/ui/Badge";
import { NONE, PROJECT_ROLES } from "./roles";

const TONES: Record<ProjectRole, Tone> = {
  viewer: "neutral",
  member: "accent",
  maintainer: "ok",
};

export function RoleBadge({ role }: { role: ProjectRole | null }) {
  if (role === null) return <span className="muted">{NONE}</span>;
  return (
    <Badge tone={TONES[role]} title={PROJECT_ROLES[role]}>
      {role}
    </Badge>
  );
}
