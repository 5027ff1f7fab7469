# NixOS module: a box as a container that systemd manages, hardened exactly as
# `agentctl generate quadlet` writes it. Imported with the flake as its argument.
self:
{
  config,
  lib,
  pkgs,
  ...
}:
let
  cfg = config.services.agentbox;
  packages = self.packages.${pkgs.stdenv.hostPlatform.system};
  # The units name the operator's files below %E/agentbox, which is /etc/agentbox;
  # here they lie below dataDir. Credentials come from files, never from the store.
  units =
    pkgs.runCommand "agentbox-units"
      { generated = packages.quadlet.override { inherit (cfg) manifest; }; }
      ''
        mkdir $out
        cp --no-preserve=mode $generated/* $out/
        sed -i 's#%E/agentbox/#${cfg.dataDir}/#' $out/*.container
        ${lib.concatMapStrings (file: ''
          sed -i '/^\[Service\]/a EnvironmentFile=${file}' $out/agentbox.container
        '') cfg.environmentFiles}
      '';
in
{
  options.services.agentbox = {
    enable = lib.mkEnableOption "a box, as a podman container that systemd manages";
    manifest = lib.mkOption {
      type = lib.types.path;
      description = "The manifest, agentbox.toml. An error in it stops the build of the system.";
    };
    skills = lib.mkOption {
      type = lib.types.nullOr lib.types.path;
      default = null;
      description = "Directory that becomes /opt/agentbox/skills in the image.";
    };
    extensions = lib.mkOption {
      type = lib.types.attrsOf lib.types.package;
      default = { };
      description = "Derivations for artifacts that nixpkgs does not have, by artifact id.";
    };
    image = lib.mkOption {
      type = lib.types.package;
      default = packages.runtime.override { inherit (cfg) manifest skills extensions; };
      defaultText = "the image of the manifest";
      description = "The image to load, a docker archive named agentbox:runtime-<system>.";
    };
    dataDir = lib.mkOption {
      type = lib.types.str;
      default = "/var/lib/agentbox";
      description = "Directory of the operator's files: workspace, projects and, optionally, agentbox.env with credentials.";
    };
    environmentFiles = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [ ];
      description = "More files with NAME=value lines: credentials of providers.";
    };
  };

  config = lib.mkIf cfg.enable {
    virtualisation.podman.enable = true;
    environment.etc."containers/systemd/agentbox".source = units;
    # uid 1000 is the box's user (1000:1000 in the hardened profile).
    systemd.tmpfiles.rules = [
      "d ${cfg.dataDir} 0755 root root -"
      "d ${cfg.dataDir}/workspace 0750 1000 1000 -"
      "d ${cfg.dataDir}/projects 0750 1000 1000 -"
      "L+ ${cfg.dataDir}/agentbox.toml - - - - ${cfg.image.manifest}"
    ];
    systemd.services.agentbox-image = {
      description = "Load the image of the box";
      before = [ "agentbox.service" ];
      requiredBy = [ "agentbox.service" ];
      serviceConfig = {
        Type = "oneshot";
        RemainAfterExit = true;
        ExecStart = "${pkgs.podman}/bin/podman load -i ${cfg.image}";
      };
    };
  };
}
