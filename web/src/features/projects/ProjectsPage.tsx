// The projects: held slots and slot-hours of each, with its weight and quotas.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "react-router";
import { projectsQuery } from "@/shared/api/queries";
import type { Project } from "@/shared/api/types";
import { type Barriers, useBarriers, useIsShared } from "@/shared/api/useMay";
import { count, hours, percent } from "@/shared/format/numbers";
import { Button } from "@/shared/ui/Button";
import { CommandLine } from "@/shared/ui/CommandLine";
import { cx } from "@/shared/ui/cx";
import { Absent } from "@/shared/ui/Notice";
import { type Column, Table } from "@/shared/ui/table/Table";
import { projectJobsPath, projectPath } from "@/shared/url/pages";
import { DeleteProjectDialog } from "./DeleteProjectDialog";
import { RoleBadge } from "./members/RoleBadge";
import { ProjectDialog } from "./ProjectDialog";
import "./projects.css";

/** The project of jobs that name none; it cannot be deleted. */
const DEFAULT = "default";
/** Period of reads: slot-hours pass without events, and no event of a job refreshes projects. */
const REFRESH_MILLISECONDS = 5_000;

const COLUMNS: readonly Column[] = [
  { name: "name", label: "Name" },
  { name: "weight", label: "Weight", number: true },
  { name: "slots", label: "Slots held", number: true },
  { name: "share", label: "Share of held slots", className: "project-meter" },
  { name: "hours", label: "Slot-hours this month", className: "project-meter" },
  { name: "waiting", label: "Waiting", number: true },
  { name: "action", label: <span className="visually-hidden">Actions</span> },
];

type Opened = { dialog: "new" } | { dialog: "change" | "delete"; project: Project };

export function ProjectsPage() {
  const projects = useQuery({ ...projectsQuery, refetchInterval: REFRESH_MILLISECONDS });
  const [opened, setOpened] = useState<Opened | null>(null);
  const close = () => setOpened(null);
  const barriers = useBarriers();
  return (
    <>
      <title>Projects · Trainyard</title>
      <header className="page-header">
        <h1>Projects</h1>
        <Button
          look="primary"
          barrier={barriers("projects:admin")}
          onClick={() => setOpened({ dialog: "new" })}
        >
          New project
        </Button>
      </header>
      {projects.data ? (
        <div className="stack">
          <Table label="Projects" columns={COLUMNS} className="projects">
            {projects.data.map((project) => (
              <ProjectRow
                key={project.name}
                project={project}
                barriers={barriers}
                onOpen={(dialog) => setOpened({ dialog, project })}
              />
            ))}
          </Table>
          <CommandLine command="trainyard projects" label="Lists the same projects" />
        </div>
      ) : (
        <Absent query={projects} />
      )}
      {opened?.dialog === "new" && <ProjectDialog project={null} onClose={close} />}
      {opened?.dialog === "change" && <ProjectDialog project={opened.project} onClose={close} />}
      {opened?.dialog === "delete" && (
        <DeleteProjectDialog project={opened.project} onClose={close} />
      )}
    </>
  );
}

interface ProjectRowProps {
  project: Project;
  barriers: Barriers;
  onOpen: (dialog: "change" | "delete") => void;
}

function ProjectRow({ project, barriers, onOpen }: ProjectRowProps) {
  const isShared = useIsShared();
  const { name, description, max_slots, slot_hours_per_month: quota } = project;
  return (
    <tr>
      <td className="project-name">
        <Link
          to={isShared ? projectPath(name) : projectJobsPath(name)}
          title={isShared ? `Members of ${name}` : `Jobs of ${name}`}
        >
          {name}
        </Link>
        {isShared && project.role && (
          <>
            {" "}
            <RoleBadge role={project.role} />
          </>
        )}
        {description && (
          <div className="small muted ellipsis" title={description}>
            {description}
          </div>
        )}
      </td>
      <td className="number">{project.weight}</td>
      <td className="number">
        {count(project.held_slots)}
        <span className="faint">{max_slots === null ? "" : ` / ${count(max_slots)}`}</span>
      </td>
      <td className="project-meter">
        <Meter part={project.share} mark={project.fair_share} />
        <span>{percent(project.share)}</span>
        <span className="faint"> of {percent(project.fair_share)} by weight</span>
      </td>
      <td className="project-meter">
        {quota !== null && (
          <Meter
            part={quota > 0 ? project.slot_hours_used / quota : 1}
            isFull={project.slot_hours_used >= quota}
          />
        )}
        <span>{hours(project.slot_hours_used)}</span>
        <span className="faint">{quota === null ? " without a limit" : ` of ${hours(quota)}`}</span>
      </td>
      <td className="number">{count(project.waiting_jobs)}</td>
      <td className="project-actions">
        <Button
          small
          barrier={barriers("projects:write")}
          aria-label={`Change ${name}`}
          onClick={() => onOpen("change")}
        >
          Change
        </Button>
        {name !== DEFAULT && (
          <Button
            small
            barrier={barriers("projects:admin")}
            aria-label={`Delete ${name}`}
            onClick={() => onOpen("delete")}
          >
            Delete
          </Button>
        )}
      </td>
    </tr>
  );
}

interface MeterProps {
  /** Filled part, 0 to 1. */
  part: number;
  /** Position of the line, 0 to 1. */
  mark?: number;
  isFull?: boolean;
}

/** A bar; its numbers are shown next to it. */
function Meter({ part, mark, isFull }: MeterProps) {
  return (
    <span className="meter" aria-hidden="true">
      <span
        className={cx("meter-part", isFull && "meter-full")}
        style={{ transform: `scaleX(${Math.min(1, part)})` }}
      />
      {mark !== undefined && mark > 0 && (
        <span className="meter-mark" style={{ left: `${100 * mark}%` }} />
      )}
    </span>
  );
}
