# Both binaries, static, with their tests as the check phase.
{
  lib,
  buildGoModule,
  commit,
}:
buildGoModule {
  pname = "agentbox";
  version = lib.fileContents ../VERSION;

  # Only what the build and its tests read: a change of the documents rebuilds
  # nothing.
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [
      ../VERSION
      ../adapters
      ../architecture_test.go
      ../bootstrap
      ../cmd
      ../docs
      ../examples
      ../go.mod
      ../go.sum
      ../image
      ../internal
      ../probes
      ../schema
      ../supervisor
    ];
  };

  inherit (lib.importJSON ./hashes.json) vendorHash;

  env.CGO_ENABLED = 0;
  ldflags = [
    "-s"
    "-w"
    "-X main.version=${lib.fileContents ../VERSION}"
    "-X main.commit=${commit}"
  ];

  meta = {
    description = "PID 1 and process supervisor of an agent container";
    license = lib.licenses.mpl20;
    mainProgram = "agentinit";
    platforms = lib.platforms.linux;
  };
}
