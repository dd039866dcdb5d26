// Sets the chosen theme before the first paint; without a choice the system's own holds.
{
  const chosen = localStorage.getItem("trainyard.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
