# The container image. What it is started with stands in image/oci.json, which the
# image tool of `make image` reads too, so that the two cannot drift apart.
{
  lib,
  dockerTools,
  cacert,
  agentbox,
}:
let
  oci = lib.importJSON ../image/oci.json;
in
dockerTools.buildLayeredImage {
  name = "agentbox";
  tag = agentbox.version;
  contents = [
    agentbox
    cacert
    dockerTools.fakeNss
  ];
  # The manifest is a bind-mount target, so it must be a file and not a link into
  # the store. The writable directories carry the mode that engines give a tmpfs
  # or a fresh volume mounted there.
  extraCommands = ''
    install -D -m 0644 ${../examples/minimal.toml} etc/agentbox.toml
    mkdir -p proc sys dev projects workspace run tmp var/lib/agentbox var/lib/ruvector var/lib/solid var/log var/run
    chmod 1777 projects workspace run tmp var/lib/agentbox var/lib/ruvector var/lib/solid var/log var/run
  '';
  config = oci;
}
