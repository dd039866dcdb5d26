import { describe, expect, it } from "vitest";
import { barrierOf, barrierSentence, includes, roleIn } from "./barriers";
import { LEAST_ROLES } from "./permissions";
import type { Permission, Project, Session } from "./types";

const NAMES = Object.keys(LEAST_ROLES) as Permission[];
const OF_VIEWER: Permission[] = ["jobs:read", "projects:read", "nodes:read", "sources:read"];

function session(fields: Partial<Session> = {}, role: "user" | "operator" | "admin" = "user") {
  const user = { id: "01jd", name: "ada", email: null, role, has_password: true };
  return { name: "ada", kind: "password", permissions: NAMES, user, ...fields } as Session;
}

const of = (name: string, role: Project["role"]) => ({ name, role }) as Project;

describe("the role in a project", () => {
  it("is that of the list of projects, and maintainer for an admin", () => {
    const projects = [of("vision", "viewer"), of("speech", null)];
    expect(roleIn(session(), projects, "vision")).toBe("viewer");
    expect(roleIn(session(), projects, "speech")).toBeNull();
    expect(roleIn(session(), projects, "hidden")).toBeNull();
    expect(roleIn(session(), undefined, "vision")).toBeUndefined();
    expect(roleIn(session({}, "admin"), undefined, "vision")).toBe("maintainer");
  });

  it("includes the roles before it", () => {
    expect(includes("maintainer", "member")).toBe(true);
    expect(includes("member", "member")).toBe(true);
    expect(includes("viewer", "member")).toBe(false);
    expect(includes(null, "viewer")).toBe(false);
  });
});

describe("the barrier of a permission", () => {
  it.each([
    ["viewer", "jobs:read", null],
    ["viewer", "jobs:write", "needs the role member in vision"],
    ["member", "jobs:write", null],
    ["member", "jobs:delete", "needs the role maintainer in vision"],
    ["maintainer", "members:write", null],
    [null, "jobs:read", "needs the role viewer in vision"],
    [undefined, "jobs:delete", null],
  ] as const)("for a %s in the project, %s: %s", (role, permission, barrier) => {
    expect(barrierOf(session(), permission, { name: "vision", role })).toBe(barrier);
  });

  it("without a project is that of every project", () => {
    const viewer = session({ permissions: OF_VIEWER });
    expect(barrierOf(viewer, "jobs:write")).toBe("needs the role member in a project");
    expect(barrierOf(session(), "jobs:write")).toBeNull();
  });

  it("is the role in the cluster for nodes, sources and projects", () => {
    const user = session({ permissions: OF_VIEWER });
    expect(barrierOf(user, "nodes:write")).toBe("needs the role operator");
    expect(barrierOf(user, "sources:write")).toBe("needs the role admin");
    expect(barrierOf(user, "nodes:read")).toBeNull();
    const operator = session({ permissions: [...OF_VIEWER, "nodes:write"] }, "operator");
    expect(barrierOf(operator, "nodes:write")).toBeNull();
    expect(barrierOf(operator, "projects:admin")).toBe("needs the role admin");
  });

  it("is the token if the role is sufficient", () => {
    const reader = session({ name: "ci", kind: "api", permissions: OF_VIEWER }, "admin");
    const vision = { name: "vision", role: "maintainer" } as const;
    expect(barrierOf(reader, "jobs:write", vision)).toBe("the token ci lacks jobs:write");
    expect(barrierOf(reader, "jobs:write")).toBe("the token ci lacks jobs:write");
    expect(barrierOf(reader, "nodes:write")).toBe("the token ci lacks nodes:write");
    const member = { ...vision, role: "viewer" } as const;
    expect(barrierOf(reader, "jobs:write", member)).toBe("needs the role member in vision");
  });

  it("is absent until the session is known", () => {
    expect(barrierOf(undefined, "jobs:write")).toBeNull();
  });

  it("is a sentence", () => {
    expect(barrierSentence("needs the role admin")).toBe("This needs the role admin.");
    expect(barrierSentence("needs the role admin", "A change")).toBe(
      "A change needs the role admin.",
    );
    expect(barrierSentence("the token ci lacks jobs:write", "A change")).toBe(
      "The token ci lacks jobs:write.",
    );
  });
});
