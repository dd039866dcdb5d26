// The page of each path.
import { createBrowserRouter, Navigate } from "react-router";
import { JobsPage } from "@/features/jobs/JobsPage";
import { NodesPage } from "@/features/nodes/NodesPage";
import { ProjectsPage } from "@/features/projects/ProjectsPage";
import { QueuePage } from "@/features/queue/QueuePage";
import { InvitationPage } from "@/features/session/InvitationPage";
import { LoginPage } from "@/features/session/LoginPage";
import { TokensPage } from "@/features/tokens/TokensPage";
import { NotFoundPage, OfProjects, PageError } from "./pages";
import { Shell } from "./shell";

/** Large pages are loaded when they are first opened; until then the previous page stays. */
const jobPage = async () => ({ Component: (await import("./JobPage")).JobPage });
const comparePage = async () => ({
  Component: (await import("@/features/compare/ComparePage")).ComparePage,
});
const nodePage = async () => ({
  Component: (await import("@/features/nodes/NodePage")).NodePage,
});
const sourcesPage = async () => ({
  Component: (await import("@/features/sources/SourcesPage")).SourcesPage,
});
const submitPage = async () => ({
  Component: (await import("@/features/submit/SubmitPage")).SubmitPage,
});

const profilePage = async () => ({
  Component: (await import("@/features/profile/ProfilePage")).ProfilePage,
});
const projectPage = async () => ({
  Component: (await import("@/features/projects/ProjectPage")).ProjectPage,
});
const devicePage = async () => ({
  Component: (await import("@/features/session/DevicePage")).DevicePage,
});
const auditPage = async () => ({
  Component: (await import("@/features/audit/AuditPage")).AuditPage,
});
const usersPage = async () => ({
  Component: (await import("@/features/users/UsersPage")).UsersPage,
});

const goodputPage = async () => ({
  Component: (await import("@/features/goodput/ClusterGoodputPage")).ClusterGoodputPage,
});

export const router = createBrowserRouter([
  { path: "/login", element: <LoginPage />, errorElement: <PageError /> },
  { path: "/invitation", element: <InvitationPage />, errorElement: <PageError /> },
  {
    element: <Shell />,
    errorElement: <PageError />,
    hydrateFallbackElement: <></>,
    children: [
      {
        // The navigation stays when a page fails.
        errorElement: <PageError />,
        children: [
          { index: true, element: <Navigate to="/jobs" replace /> },
          {
            element: <OfProjects permission="jobs:read" />,
            children: [
              { path: "/jobs", element: <JobsPage /> },
              { path: "/jobs/new", lazy: submitPage },
              { path: "/jobs/:jobId", lazy: jobPage },
              { path: "/compare", lazy: comparePage },
              { path: "/queue", element: <QueuePage /> },
            ],
          },
          {
            element: <OfProjects permission="projects:read" />,
            children: [
              { path: "/projects", element: <ProjectsPage /> },
              { path: "/projects/:project", lazy: projectPage },
            ],
          },
          { path: "/goodput", lazy: goodputPage },
          { path: "/nodes", element: <NodesPage /> },
          { path: "/nodes/:node", lazy: nodePage },
          { path: "/sources", lazy: sourcesPage },
          { path: "/tokens", element: <TokensPage /> },
          { path: "/users", lazy: usersPage },
          { path: "/audit", lazy: auditPage },
          { path: "/profile", lazy: profilePage },
          { path: "/device", lazy: devicePage },
          { path: "*", element: <NotFoundPage /> },
        ],
      },
    ],
  },
]);
