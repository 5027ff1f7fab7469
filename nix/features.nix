# What a manifest puts into the image: packages, links, environment, ports. All of
# it follows from nix/catalogue.json, which `agentctl config catalogue` prints and
# `make generate` commits; this file holds no feature of its own.
#
# The rules here (conditions, templates, ports) repeat schema/catalog and
# schema/compose. nix/image.nix compares the result with `agentctl generate image`
# in each build, so that the two cannot disagree.
{
  lib,
  manifest, # the parsed manifest
  version,
  system,
}:
let
  inherit (builtins)
    any
    concatLists
    concatStringsSep
    elemAt
    filter
    isBool
    isList
    isString
    length
    listToAttrs
    map
    match
    replaceStrings
    split
    ;
  catalogue = lib.importJSON ./catalogue.json;

  written = manifest.bootstrap.profile or "auto";
  profile =
    if written != "auto" then
      written
    else if any (section: manifest ? ${section}) catalogue.profile.sections then
      "agentbox"
    else
      "none";

  facts = {
    "@profile" = profile;
    "@version" = version;
    "@system" = system;
  };
  lookup =
    path:
    facts.${path} or (lib.attrByPath (lib.splitString "." path) (catalogue.defaults.${path}
      or (throw "nix/catalogue.json names ${path} without a default; run make generate")
    ) manifest);

  format =
    value:
    if isBool value then
      lib.boolToString value
    else if isList value then
      concatStringsSep "," (map format value)
    else
      toString value;

  # Conditions: "a.b", "!a.b", "a.b = x | y", "a.b != x | y".
  trim = text: elemAt (match " *(.*[^ ]|) *" text) 0;
  isOneOf = path: values: any (v: trim v == format (lookup (trim path))) (lib.splitString "|" values);
  condition =
    text:
    let
      unequal = match "([^=!]*)!=(.*)" text;
      equal = match "([^=]*)=(.*)" text;
      negated = match " *!(.*)" text;
    in
    if unequal != null then
      !(isOneOf (elemAt unequal 0) (elemAt unequal 1))
    else if equal != null then
      isOneOf (elemAt equal 0) (elemAt equal 1)
    else if negated != null then
      lookup (trim (elemAt negated 0)) != true
    else
      lookup (trim text) == true;
  holds = builtins.all condition;

  # "host:port" and "port" taken apart as catalog.SplitAddress does.
  address =
    text:
    let
      both = match "(\\[([^]]*)]|([^]:[]*)):([^:]*)" text;
    in
    if match "[0-9]+" text != null then
      {
        host = "";
        port = text;
      }
    else if both == null then
      {
        host = "";
        port = "";
      }
    else
      {
        host = if elemAt both 1 != null then elemAt both 1 else elemAt both 2;
        port = elemAt both 3;
      };
  filters = {
    port = text: (address text).port;
    host = text: (address text).host;
  };
  # "{a.b}" and "{a.b|filter}"; "${X}" stays for the box.
  fill =
    text:
    concatStringsSep "" (
      map (
        part:
        if isString part then
          part
        else if elemAt part 0 == "$" then
          "\${${elemAt part 1}${if elemAt part 2 == null then "" else elemAt part 2}}"
        else
          let
            value = format (lookup (elemAt part 1));
            name = elemAt part 3;
          in
          if name == null then value else filters.${name} value
      ) (split "(\\$?)\\{(@?[a-z][a-z0-9_.-]*)(\\|([a-z]+))?}" text)
    );
  loopback = host: host == "localhost" || host == "::1" || match "127\\.[0-9.]+" host != null;

  active = filter (f: holds (f.when or [ ])) catalogue.features;
  gpu =
    let
      rows = filter (g: g.backend == lookup "gpu.backend") catalogue.gpu;
    in
    if rows == [ ] then { } else elemAt rows 0;

  metrics = address (lookup "supervisor.metrics_listen");
  ports = concatLists (
    map (
      f:
      concatLists (
        map (
          p:
          let
            bind = fill (p.bind or "");
            isMetrics = p.name == "metrics";
            local = p ? bind && loopback bind || isMetrics && loopback metrics.host;
          in
          lib.optional (holds (p.when or [ ])) {
            number = if isMetrics && metrics.port != "" then metrics.port else fill p.port;
            exposed =
              !local && (p.expose or false || f.name == "management" || f.name == "agentbox");
            inherit (p) name;
          }
        ) (f.ports or [ ])
      )
    ) active
  );
  # The first of two ports with one number decides.
  distinct = builtins.foldl' (
    have: p: if any (q: q.number == p.number) have then have else have ++ [ p ]
  ) [ ] ports;

  environment =
    let
      all = builtins.foldl' (a: b: a // b) { } (
        [ catalogue.environment ] ++ map (f: f.environment or { }) active ++ [ (gpu.environment or { }) ]
      );
      filled = builtins.mapAttrs (_: fill) all;
      metricsPorts = filter (p: p.name == "metrics") ports;
      adjusted =
        removeAttrs filled (lib.optional (lookup "supervisor.listen" == "off") "MANAGEMENT_API_PORT")
        // lib.optionalAttrs (metricsPorts != [ ]) {
          AGENTBOX_METRICS_PORT = (elemAt metricsPorts 0).number;
        };
    in
    if profile == "none" then
      lib.filterAttrs (name: _: builtins.elem name catalogue.profile.plain_environment) adjusted
    else
      adjusted;

  artifacts = map (a: a // { entry = fill a.entry; }) (
    lib.unique (concatLists (map (f: f.artifacts or [ ]) active))
  );
  wanted = lib.unique (
    concatLists (map (x: x.packages or [ ]) (active ++ artifacts))
    ++ gpu.packages or [ ]
  );
in
{
  inherit
    profile
    environment
    artifacts
    ;
  names = map (f: f.name) active;
  exposedPorts = listToAttrs (
    map (p: lib.nameValuePair "${p.number}/tcp" { }) (filter (p: p.exposed) distinct)
  );

  # Attribute paths of nixpkgs. Python's are one environment, because two would
  # both want /bin/python3.
  packages = filter (p: !(lib.hasPrefix "python3" p)) wanted;
  python = map (p: replaceStrings [ "python3Packages." ] [ "" ] p) (
    filter (lib.hasPrefix "python3Packages.") wanted
  );
  wantsPython = any (lib.hasPrefix "python3") wanted;

  # An artifact with an absolute entry is a link to its package, or to an extension; a
  # bare name is a tool, which its package brings to PATH.
  links = filter (a: lib.hasPrefix "/" a.entry) artifacts;

  # The artifacts that nothing provides: no package, no extension of that id, and
  # not part of the skills tree.
  missing =
    { skills, extensions }:
    filter (
      a:
      (a.required or true)
      && !(a ? packages)
      && !(extensions ? ${a.id})
      && !(skills != null && lib.hasPrefix "/opt/agentbox/skills/" a.entry)
    ) artifacts;
}
