# What `agentctl generate` makes of a manifest: the compose file, the Kubernetes
# objects, the quadlet units. Never read back at evaluation.
{
  lib,
  runCommand,
  agentbox,
  system,
  format, # a word of `agentctl generate`
  name, # of the result
  manifest ? ../examples/minimal.toml,
  flags ? [ ],
}:
runCommand name { nativeBuildInputs = [ agentbox ]; } ''
  agentctl config validate --quiet --system ${system} ${manifest} || agentctl config validate --system ${system} ${manifest}
  agentctl generate ${format} --system=${system} ${lib.escapeShellArgs flags} -o $out ${manifest}
''
