# Both binaries, static, with their tests as the check phase.
{
  lib,
  buildGoModule,
  commit,
}:
buildGoModule {
  pname = "agentbox";
  version = lib.fileContents ../VERSION;

  # Everything that git tracks except what neither the build nor a test reads, so
  # that a new package is part of the build without being listed here.
  # nix/sources_test.go holds this list against `go list ./...`.
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.difference ../. (
      lib.fileset.unions [
        ../.ci
        ../CHANGELOG.md
        ../flake.lock
        ../flake.nix
        ../nix/stub
        ../test
      ]
    );
  };

  inherit (lib.importJSON ./hashes.json) vendorHash;

  env.CGO_ENABLED = 0;
  env.GOEXPERIMENT = "nogreenteagc"; # as in the Makefile
  ldflags = [
    "-s"
    "-w"
    "-X runtime.godebugDefault=profstackdepth=0" # as in the Makefile
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
