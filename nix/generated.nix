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
  # A compose file mounts the manifest by its name, which in the store begins with a hash.
  file=$(basename ${manifest} | sed 's/^[0-9a-z]\{32\}-//')
  cp ${manifest} "$file"
  agentctl generate ${format} --system=${system} ${lib.escapeShellArgs flags} -o $out "$file"
''
