# The container image of a manifest: both binaries, the manifest as
# /etc/agentbox.toml, the packages of its features, the skills tree. Arguments are
# overridable: packages.runtime.override { manifest = ./agentbox.toml; }.
#
# What the container is started with stands in image/oci.json, which the image tool
# of `make image` reads too, so that the two cannot drift apart.
{
  lib,
  pkgs,
  dockerTools,
  cacert,
  runCommand,
  writeText,
  agentbox,
  commit,
  system,
  manifest ? ../examples/minimal.toml,
  tag ? "runtime-${system}",
  # A directory that becomes /opt/agentbox/skills. It enters the store under the
  # hash of its content: the same tree gives the same image, wherever it lies.
  skills ? null,
  # Artifact id → derivation, for what nixpkgs does not have: npm tools, command
  # lines, 3D tools. An artifact below /bin takes the derivation's bin/, any other
  # becomes a link to the derivation.
  extensions ? { },
  contents ? [ ], # more packages, for the programs of the manifest itself
  allowMissing ? false, # build although an artifact has no provider
}:
let
  manifestFile = builtins.path {
    path = manifest;
    name = "agentbox.toml";
  };
  features = import ./features.nix {
    inherit lib system;
    inherit (agentbox) version;
    manifest = builtins.addErrorContext "while reading the manifest ${toString manifest}" (
      fromTOML (builtins.readFile manifest)
    );
  };

  oci = lib.importJSON ../image/oci.json;
  nameOf = entry: builtins.head (lib.splitString "=" entry);
  generated = {
    Env = lib.mapAttrsToList (name: value: "${name}=${value}") features.environment;
    ExposedPorts = features.exposedPorts;
  };
  config = oci // {
    Env =
      builtins.filter (entry: !(features.environment ? ${nameOf entry})) oci.Env ++ generated.Env;
    inherit (generated) ExposedPorts;
    Labels = oci.Labels // {
      "org.opencontainers.image.version" = agentbox.version;
      "org.opencontainers.image.revision" = commit;
    };
  };

  # No image without a valid manifest: every E-code stops this derivation, and so
  # does a difference between features.nix and agentctl.
  checked = runCommand "agentbox-manifest" { nativeBuildInputs = [ agentbox ]; } ''
    agentctl config validate --system ${system} ${manifestFile}
    agentctl generate image --system ${system} ${manifestFile} > image.json
    agentctl generate image --system ${system} --check ${
      writeText "image.json" (builtins.toJSON generated)
    } ${manifestFile} || {
      echo "nix/features.nix and agentctl disagree about this manifest; please report it" >&2
      exit 1
    }
    install -D -m 0644 ${manifestFile} $out
  '';

  attribute =
    path:
    lib.attrByPath (lib.splitString "." path) (throw "nixpkgs has no ${path}, which this manifest needs") pkgs;
  python = pkgs.python3.withPackages (
    p:
    map (
      name: p.${name} or (throw "nixpkgs has no python3Packages.${name}, which this manifest needs")
    ) features.python
  );
  skillsTree = builtins.path {
    path = skills;
    name = "agentbox-skills";
  };

  missing = features.missing { inherit skills extensions; };
  unprovided = "the manifest needs ${
    lib.concatMapStringsSep ", " (a: "${a.id} (${a.entry})") missing
  }, which neither nixpkgs nor the skills tree has; pass extensions = { <id> = <derivation>; } or skills = <directory>, or switch the feature off";
  unknown = builtins.filter (
    id: !(builtins.any (a: a.id == id) features.artifacts)
  ) (builtins.attrNames extensions);
  provider = a: extensions.${a.id} or (attribute (builtins.head a.packages));
in
assert lib.assertMsg (missing == [ ] || allowMissing) unprovided;
assert lib.assertMsg (
  unknown == [ ]
) "extensions names ${lib.concatStringsSep ", " unknown}, which no active feature of the manifest asks for";
dockerTools.buildLayeredImage {
  name = "agentbox";
  inherit tag config;
  contents = [
    agentbox
    cacert
    dockerTools.fakeNss
  ]
  ++ map attribute features.packages
  ++ lib.optional features.wantsPython python
  ++ builtins.attrValues (
    lib.filterAttrs (id: _: !(builtins.any (a: a.id == id) features.links)) extensions
  )
  ++ contents;
  # The manifest is a bind-mount target, so it must be a file and not a link into
  # the store. The writable directories carry the mode that engines give a tmpfs
  # or a fresh volume mounted there.
  extraCommands = ''
    install -D -m 0644 ${checked} etc/agentbox.toml
    mkdir -p proc sys dev projects workspace run tmp var/lib/agentbox var/lib/ruvector var/lib/solid var/log var/run
    chmod 1777 projects workspace run tmp var/lib/agentbox var/lib/ruvector var/lib/solid var/log var/run
    mkdir -p opt/agentbox
  ''
  + lib.optionalString (skills != null) ''
    cp -r ${skillsTree} opt/agentbox/skills
    chmod -R u+w opt/agentbox/skills
  ''
  + lib.concatMapStrings (a: ''
    mkdir -p .${dirOf a.entry}
    ln -sfn ${provider a} .${a.entry}
  '') (builtins.filter (a: extensions ? ${a.id} || a ? packages) features.links);
  passthru = {
    inherit features config missing;
    manifest = checked;
  };
}
