# The compose file generated from the example manifest; never read back at
# evaluation.
{
  runCommand,
  agentbox,
}:
runCommand "docker-compose.yml" { nativeBuildInputs = [ agentbox ]; } ''
  agentctl generate compose --system x86_64-linux ${../examples/minimal.toml} > $out
''
