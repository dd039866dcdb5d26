// Short names for the models of the server's OpenAPI document.
import type { components } from "./schema";

type Schemas = components["schemas"];

export type Artifact = Schemas["ArtifactView"];
export type Histogram = Schemas["HistogramView"];
export type Attempt = Schemas["AttemptView"];
export type BatchPlan = Schemas["BatchPlan"];
export type CheckpointView = Schemas["CheckpointView"];
export type SavedFile = Schemas["SavedFile"];
export type Operation = Schemas["OperationView"];
export type ClusterRole = Schemas["ClusterRole"];
export type ProjectRole = Schemas["ProjectRole"];
/** A role in a project or in the cluster. */
export type Role = ProjectRole | ClusterRole;
export type Member = Schemas["MemberView"];
export type ClusterGoodput = Schemas["ClusterGoodputView"];
export type IntervalOutcome = Schemas["IntervalOutcome"];
export type AdviceFinding = Schemas["AdviceFinding"];
export type SaveIntervalWhatIf = Schemas["SaveIntervalWhatIf"];
export type ComparedJob = Schemas["ComparedJobView"];
export type FactRow = Schemas["FactRow"];
export type ComparedCurve = Schemas["ComparedCurveView"];
export type Comparison = Schemas["ComparisonView"];
export type EventView = Schemas["EventView"];
/** An item of the stream: an event, or a notice, which has no id. */
export type StreamItem = Schemas["StreamItem"];
export type ItemKind = StreamItem["kind"];
export type Failure = Schemas["Failure"];
export type NextAction = Schemas["NextAction"];
export type ExportRequest = Schemas["ExportRequest"];
export type IssuerGroup = Schemas["GroupView"];
export type Goodput = Schemas["GoodputView"];
export type Job = Schemas["JobView"];
export type JobState = Schemas["JobState"];
export type Invitation = Schemas["InvitationView"];
export type JobSummary = Schemas["JobSummary"];
export type MemoryEstimate = Schemas["MemoryEstimate"];
export type MetricCurve = Schemas["CurveView"];
export type Metrics = Schemas["MetricsView"];
export type NodeCurve = Schemas["NodeCurve"];
export type NodeMetrics = Schemas["NodeMetrics"];
export type NodeRequest = Schemas["NodeRequestView"];
export type NodeView = Schemas["NodeView"];
export type Plan = Schemas["Plan"];
export type ProgramPlan = Schemas["ProgramPlan"];
export type RankedLayout = Plan["ranked"][number];
export type BrowserSession = Schemas["BrowserSession"];
export type Calibration = Schemas["Calibration"];
/** The plan of a job of either kind. */
export type AnyPlan = Plan | ProgramPlan;
export type Permission = Schemas["Permission"];
export type Problem = Schemas["Problem"];
export type ProblemDetails = Schemas["ProblemDetails"];
export type Project = Schemas["ProjectView"];
export type Progress = Schemas["Progress"];
export type Ranks = Schemas["RanksView"];
export type QueueEntry = Schemas["QueueEntry"];
export type ResumeOptions = Schemas["ResumeOptions"];
export type ResumePreview = Schemas["ResumePreview"];
export type ResumeRequest = Schemas["ResumeRequest"];
export type Session = Schemas["SessionView"];
export type Source = Schemas["SourceView"];
export type Token = Schemas["TokenView"];
export type TokenRequest = Schemas["TokenRequest"];
export type User = Schemas["UserView"];
export type WhatIf = Schemas["WhatIf"];
export type Verb = Job["verbs"][number];
