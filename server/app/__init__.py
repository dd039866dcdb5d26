"""The application: routes, OpenAPI document, reference page, dashboard, health and metrics."""
