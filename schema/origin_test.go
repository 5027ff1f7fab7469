package schema

import "testing"

func TestParseOrigin(t *testing.T) {
	for in, want := range map[string]string{
		"https://box.example.org":       "https://box.example.org",
		"https://box.example.org/":      "https://box.example.org",
		"HTTPS://Box.Example.org:443":   "https://box.example.org",
		"http://box:80":                 "http://box",
		"http://box:9090":               "http://box:9090",
		"http://[::1]:9090":             "http://[::1]:9090",
		"http://[::1]:80":               "http://[::1]",
		"https://xn--bcher-kva.example": "https://xn--bcher-kva.example",
		"tauri://localhost":             "tauri://localhost",

		"": "", "*": "", "null": "", "box.example.org": "", "//box": "", "https://": "", "https://:443": "", "https:///": "",
		"https://*.example.org": "", "https://box/path": "", "https://box?": "", "https://box?q=1": "", "https://box#": "",
		"https://user@box": "", "https://user:pw@box": "", "https://box:http": "", "https://box:65536": "", "https://b ox": "",
		"https://bücher.example": "", "https://box//": "", "https://a,https://b": "", "https://box%00": "", "https://[::1": "",
	} {
		got, err := ParseOrigin(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
		if again, err := ParseOrigin(got); want != "" && (again != got || err != nil) {
			t.Errorf("%q: reads itself as %q %v", got, again, err)
		}
	}
}

func TestParsePrefix(t *testing.T) {
	for in, want := range map[string]string{
		"10.0.0.0/8": "10.0.0.0/8", "10.1.2.3/8": "10.0.0.0/8", "10.1.2.3": "10.1.2.3/32", "fd00::/8": "fd00::/8", "::1": "::1/128",
		"::ffff:10.0.0.1": "10.0.0.1/32", "::ffff:10.0.0.0/104": "10.0.0.0/8", "0.0.0.0/0": "0.0.0.0/0",
		"": "", "proxy": "", "10.0.0.0/33": "", "10.0.0": "", "fe80::1%eth0": "", "10.0.0.0/-1": "", "::ffff:0:0/80": "",
	} {
		p, err := ParsePrefix(in)
		if err == nil && p.String() != want || (err == nil) != (want != "") {
			t.Errorf("%q: %v %v, want %q", in, p, err, want)
		}
	}
}

func FuzzParseOrigin(f *testing.F) {
	f.Add("https://box.example.org:8443/")
	f.Add("http://[::1%25eth0]:80")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseOrigin(s)
		if err != nil {
			return
		}
		if again, err := ParseOrigin(got); err != nil || again != got {
			t.Fatalf("%q becomes %q, which becomes %q %v", s, got, again, err)
		}
	})
}

func TestAPIKeysAreChecked(t *testing.T) {
	for line, findings := range map[string]int{
		`public_urls = ["https://box.example.org"]`: 0, `public_urls = ["ftp://box.example.org"]`: 1, `public_urls = ["box"]`: 1,
		`trusted_proxies = ["10.0.0.0/8", "::1"]`: 0, `trusted_proxies = ["proxy.local"]`: 1,
		`cors_origins = ["https://a", "tauri://localhost"]`: 0, `cors_origins = ["*"]`: 1, `cors_origins = ["null"]`: 1,
		`rate_limit = 0`: 0, `rate_limit = -1`: 1,
	} {
		if _, _, got := load(t, "[api]\n"+line+"\n"); len(got) != findings {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func TestPublicURL(t *testing.T) {
	for address, want := range map[string]string{
		"":                                 "",
		"http://collector:4318":            "http://collector:4318",
		"http://user:s3cret@collector:43/": "http://collector:43/",
		"https://s3cret@h/a%2Fb/c":         "https://h/a%2Fb/c",
		"https://h/x?key=s3cret#s3cret":    "https://h/x",
		"http://user:s3/cret@h":            "", // the parsed host would be a part of the password
		"user:s3cret@h":                    "",
		"s3cret":                           "",
		"//u:s3cret@h/p":                   "//h/p",
		"http://[::1]:4318/v1":             "http://[::1]:4318/v1",
	} {
		if got := PublicURL(address); got != want {
			t.Errorf("%q is shown as %q, want %q", address, got, want)
		}
	}
}
