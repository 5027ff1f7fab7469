// What a program does with Inrupt's solid-client: arguments are the package, the
// URL of an empty place for it, and an Authorization header. Prints one JSON
// document: what each step has come to, with the URL written as BASE.
const [, , pkg, base, authorization] = process.argv;
const solid = require(pkg);
const options = {
  fetch: (url, init = {}) => {
    const headers = new Headers(init.headers);
    if (authorization) headers.set("Authorization", authorization);
    return fetch(url, { ...init, headers });
  },
};
const vocab = { knows: "http://xmlns.com/foaf/0.1/knows", name: "http://xmlns.com/foaf/0.1/name", home: base + "terms#home" };
const results = {};

async function step(name, f) {
  try {
    const value = await f();
    results[name] = JSON.parse(JSON.stringify(value === undefined ? "done" : value).replaceAll(base, "BASE/"));
  } catch (e) {
    results[name] = "failed: " + String(e.message).split("\n")[0].replaceAll(base, "BASE/");
  }
}

const facts = (dataset) =>
  solid.getThingAll(dataset).map((t) => ({
    url: solid.asUrl(t), name: solid.getStringNoLocale(t, vocab.name), home: solid.getStringNoLocale(t, vocab.home),
    knows: solid.getUrlAll(t, vocab.knows).map((u) => u.replaceAll(base, "BASE/")).sort(),
  })).sort((a, b) => (a.url < b.url ? -1 : 1));

(async () => {
  const card = base + "people/card", container = base + "people/";
  await step("create a container", async () => solid.getSourceUrl(await solid.createContainerAt(container, options)));
  await step("save a dataset", async () => {
    const me = solid.buildThing({ url: card + "#me" }).addStringNoLocale(vocab.name, "see " + base + "people/other")
      .addUrl(vocab.knows, base + "people/other#me").addUrl(vocab.knows, "http://elsewhere.example/x").addStringNoLocale(vocab.home, "a place").build();
    await solid.saveSolidDatasetAt(card, solid.setThing(solid.createSolidDataset(), me), options);
  });
  await step("read it", async () => facts(await solid.getSolidDataset(card, options)));
  await step("change it", async () => {
    let dataset = await solid.getSolidDataset(card, options);
    let me = solid.getThing(dataset, card + "#me");
    me = solid.removeUrl(me, vocab.knows, base + "people/other#me");
    me = solid.addUrl(me, vocab.knows, base + "people/third#me");
    await solid.saveSolidDatasetAt(card, solid.setThing(dataset, me), options);
    return facts(await solid.getSolidDataset(card, options));
  });
  await step("save in a container", async () => {
    const thing = solid.buildThing({ name: "it" }).addStringNoLocale(vocab.name, "noted").build();
    const saved = await solid.saveSolidDatasetInContainer(container, solid.setThing(solid.createSolidDataset(), thing), { ...options, slugSuggestion: "note" });
    return [solid.getSourceUrl(saved), facts(await solid.getSolidDataset(solid.getSourceUrl(saved), options))];
  });
  await step("create a container in a container", async () =>
    solid.getSourceUrl(await solid.createContainerInContainer(container, { ...options, slugSuggestion: "inner" })));
  await step("save a file in a container", async () => {
    const file = new File(["hello " + base], "hello.txt", { type: "text/plain" });
    return solid.getSourceUrl(await solid.saveFileInContainer(container, file, { ...options, slug: "hello.txt", contentType: "text/plain" }));
  });
  await step("overwrite and read a file", async () => {
    await solid.overwriteFile(container + "hello.txt", new Blob(["again " + base], { type: "text/plain" }), { ...options, contentType: "text/plain" });
    const got = await solid.getFile(container + "hello.txt", options);
    return [await got.text(), got.type];
  });
  await step("resource info", async () => {
    const info = await solid.getResourceInfo(card, options);
    return [solid.getSourceUrl(info), solid.isContainer(info), solid.isRawData(info), solid.getContentType(info), solid.hasServerResourceInfo(info) && info.internal_resourceInfo.aclUrl];
  });
  await step("list a container", async () => solid.getContainedResourceUrlAll(await solid.getSolidDataset(container, options)).sort());
  await step("write access rules", async () => {
    let dataset = await solid.getSolidDatasetWithAcl(card, options);
    let acl = solid.hasResourceAcl(dataset) ? solid.getResourceAcl(dataset) : solid.createAclFromFallbackAcl(dataset);
    acl = solid.setPublicResourceAccess(acl, { read: true, append: true, write: true, control: true });
    acl = solid.setAgentResourceAccess(acl, base + "people/other#me", { read: true, append: false, write: false, control: false });
    await solid.saveAclFor(dataset, acl, options);
    dataset = await solid.getSolidDatasetWithAcl(card, options);
    return [solid.hasResourceAcl(dataset), solid.getPublicAccess(dataset), solid.getAgentAccessAll(dataset)];
  });
  await step("delete", async () => {
    await solid.deleteSolidDataset(card, options);
    await solid.deleteFile(container + "hello.txt", options);
    await solid.deleteSolidDataset(container + "note", options);
    await solid.deleteContainer(container + "inner/", options);
    await solid.deleteContainer(container, options);
  });
  await step("nothing is left", async () => solid.getSolidDataset(container, options).then(() => "there", (e) => e.statusCode));
  console.log(JSON.stringify(results));
})();
