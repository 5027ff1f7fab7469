package mailbox

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nbd-wtf/go-nostr"
	"pgregory.net/rapid"

	"github.com/dreamlab-ai/agentinit/bootstrap/identity"
	"github.com/dreamlab-ai/agentinit/mesh/nip01"
	"github.com/dreamlab-ai/agentinit/mesh/relay/relaytest"
)

var now = time.Unix(1_700_000_000, 0)

func signed(t testing.TB, k *identity.Key, e nostr.Event) *nostr.Event {
	t.Helper()
	e.CreatedAt = cmp.Or(e.CreatedAt, nostr.Timestamp(now.Unix()))
	if err := k.Sign(&e); err != nil {
		t.Fatal(err)
	}
	return &e
}

func encrypt(t testing.TB, k *identity.Key, text string, to *identity.Key) string {
	t.Helper()
	out, err := k.Encrypt(text, to.Public())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func rumor(k *identity.Key, kind int, content string, to *identity.Key) nostr.Event {
	e := nostr.Event{PubKey: string(k.Public()), CreatedAt: nostr.Timestamp(now.Unix()), Kind: kind, Content: content, Tags: nostr.Tags{{"p", string(to.Public())}}}
	e.ID = e.GetID()
	return e
}

// wrapped returns a gift wrap around the text of a seal.
func wrapped(t testing.TB, seal string, to *identity.Key) *nostr.Event {
	once := relaytest.NewKey(t)
	return signed(t, once, nostr.Event{Kind: nip01.KindGiftWrap, Tags: nostr.Tags{{"p", string(to.Public())}}, Content: encrypt(t, once, seal, to)})
}

func gift(t testing.TB, from *identity.Key, r nostr.Event, to *identity.Key) *nostr.Event {
	seal := signed(t, from, nostr.Event{Kind: nip01.KindSeal, Content: encrypt(t, from, r.String(), to)})
	return wrapped(t, seal.String(), to)
}

func allows(own *identity.Key, trusted ...*identity.Key) Policy {
	p := Policy{Own: string(own.Public()), Kinds: []int{1, 1059, 38000}, MaxEventBytes: 8192, Retention: 30 * 24 * time.Hour}
	for _, k := range trusted {
		p.Trusted = append(p.Trusted, string(k.Public()))
	}
	return p
}

func reasonOf(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		t.Fatalf("%v is no Refusal", err)
	}
	return r.Reason
}

// Each row is a good event with one change. The first rows show that the unchanged event is accepted.
func TestPolicyAdmit(t *testing.T) {
	own, friend, stranger := relaytest.NewKey(t), relaytest.NewKey(t), relaytest.NewKey(t)
	to := nostr.Tags{{"p", string(own.Public())}}
	note := func(e nostr.Event) *nostr.Event {
		e.Kind = cmp.Or(e.Kind, 1)
		if e.Tags == nil {
			e.Tags = to
		}
		return signed(t, friend, e)
	}
	chat := rumor(friend, KindChat, "hello", own)
	forged := func(change func(*nostr.Event)) *nostr.Event {
		e := note(nostr.Event{Content: "pay 1"})
		change(e)
		return e
	}
	sealOf := func(r nostr.Event, change func(*nostr.Event)) *nostr.Event {
		seal := nostr.Event{Kind: nip01.KindSeal, Content: encrypt(t, friend, r.String(), own)}
		change(&seal)
		return wrapped(t, signed(t, friend, seal).String(), own)
	}
	badSeal := signed(t, friend, nostr.Event{Kind: nip01.KindSeal, Content: encrypt(t, friend, chat.String(), own)})
	badSeal.Sig = note(nostr.Event{}).Sig
	others := rumor(stranger, KindChat, "I am the stranger", own)
	wrongID := chat
	wrongID.ID = others.ID
	days := func(n int) nostr.Timestamp { return nostr.Timestamp(now.AddDate(0, 0, -n).Unix()) }
	for _, row := range []struct {
		name   string
		event  *nostr.Event
		change func(*Policy)
		want   string
	}{
		{name: "a note", event: note(nostr.Event{})},
		{name: "an intent of the range", event: note(nostr.Event{Kind: 38042})},
		{name: "a gift wrap", event: gift(t, friend, chat, own)},
		{name: "an intent in a gift wrap", event: gift(t, friend, rumor(friend, 38001, "{}", own), own)},
		{name: "a stranger where strangers may", event: signed(t, stranger, nostr.Event{Kind: 1, Tags: to}), change: func(p *Policy) { p.Strangers = true }},
		{name: "of 31 days and in a wrap that may be two days early", event: note(nostr.Event{CreatedAt: days(31)})},
		{name: "older than everything that is kept", event: note(nostr.Event{CreatedAt: days(33)}), want: ReasonStale},
		{name: "as old where all is kept", event: note(nostr.Event{CreatedAt: days(33)}), change: func(p *Policy) { p.Retention = 0 }},

		{name: "another recipient", event: note(nostr.Event{Tags: nostr.Tags{{"p", string(friend.Public())}}}), want: ReasonRecipient},
		{name: "no recipient", event: note(nostr.Event{Tags: nostr.Tags{}}), want: ReasonRecipient},
		{name: "a kind that is not listed", event: note(nostr.Event{Kind: 5}), want: ReasonKind},
		{name: "kind 4", event: note(nostr.Event{Kind: 4}), want: ReasonKind},
		{name: "kind 4 where it is allowed", event: note(nostr.Event{Kind: 4}), change: func(p *Policy) { p.NIP04 = true }},
		{name: "too large", event: note(nostr.Event{Content: fmt.Sprintf("%8192d", 1)}), want: ReasonSize},
		{name: "expired", event: note(nostr.Event{Tags: append(nostr.Tags{{"expiration", "1699999999"}}, to...)}), want: ReasonExpired},
		{name: "from the future", event: note(nostr.Event{CreatedAt: nostr.Timestamp(now.Add(16 * time.Minute).Unix())}), want: ReasonFuture},
		{name: "a stranger", event: signed(t, stranger, nostr.Event{Kind: 1, Tags: to}), want: ReasonSender},
		{name: "changed content", event: forged(func(e *nostr.Event) { e.Content = "pay 2" }), want: ReasonSignature},
		{name: "changed content and id", event: forged(func(e *nostr.Event) { e.Content = "pay 2"; e.ID = e.GetID() }), want: ReasonSignature},
		{name: "another's signature", event: forged(func(e *nostr.Event) { e.Sig = signed(t, stranger, *e).Sig }), want: ReasonSignature},

		{name: "a stranger in a gift wrap", event: gift(t, stranger, rumor(stranger, KindChat, "x", own), own), want: ReasonSender},
		{name: "a friend's name in a stranger's seal", event: gift(t, stranger, chat, own), want: ReasonSeal},
		{name: "the same where strangers may", event: gift(t, stranger, chat, own), change: func(p *Policy) { p.Strangers = true }, want: ReasonSeal},
		{name: "a stranger's name in a friend's seal", event: gift(t, friend, others, own), want: ReasonSeal},
		{name: "a seal with another's signature", event: wrapped(t, badSeal.String(), own), want: ReasonSeal},
		{name: "a seal with tags", event: sealOf(chat, func(e *nostr.Event) { e.Tags = to }), want: ReasonSeal},
		{name: "a seal of another kind", event: sealOf(chat, func(e *nostr.Event) { e.Kind = 14 }), want: ReasonSeal},
		{name: "a rumor with another id", event: gift(t, friend, wrongID, own), want: ReasonSeal},
		{name: "a wrap in a wrap", event: gift(t, friend, rumor(friend, 5, "x", own), own), want: ReasonKind},
		{name: "text for a seal", event: wrapped(t, "hello", own), want: ReasonSeal},
		{name: "a gift wrap of line breaks", event: signed(t, stranger, nostr.Event{Kind: 1059, Tags: to, Content: strings.Repeat("\n", 132)}), want: ReasonSeal},
		{name: "a seal of line breaks", event: sealOf(chat, func(e *nostr.Event) { e.Content = strings.Repeat("\r\n", 66) }), want: ReasonSeal},
		{name: "encrypted for another", event: signed(t, friend, nostr.Event{Kind: 1059, Tags: to, Content: encrypt(t, friend, "x", stranger)}), want: ReasonSeal},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := allows(own, own, friend)
			if row.change != nil {
				row.change(&p)
			}
			message, err := p.admit(row.event, len(row.event.String()), now, own)
			if got := reasonOf(t, err); got != row.want {
				t.Fatalf("refused for %q (%v), want %q", got, err, row.want)
			}
			if err == nil && row.event.Kind == nip01.KindGiftWrap && (message.PubKey != string(friend.Public()) || message == row.event) {
				t.Errorf("the message is %v", message)
			}
		})
	}
}

// A relay may keep messages longer than the inbox. A message that the inbox has pruned must not come
// back.
func TestWhatIsPrunedIsRefused(t *testing.T) {
	own := relaytest.NewKey(t)
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{Own: string(own.Public()), Kinds: []int{1}, MaxEventBytes: 1 << 20, Retention: time.Duration(rapid.IntRange(0, 40*24).Draw(t, "hours")) * time.Hour}
		created := now.Add(time.Duration(rapid.IntRange(-100*24, 0).Draw(t, "created")) * time.Hour)
		received := now.Add(time.Duration(rapid.IntRange(-100*24, 0).Draw(t, "received")) * time.Hour)
		tags := nostr.Tags{{"p", p.Own}}
		expires := time.Time{}
		if rapid.Bool().Draw(t, "expires") {
			expires = now.Add(time.Duration(rapid.IntRange(-100, 100).Draw(t, "expiry")) * time.Hour)
			tags = append(tags, nostr.Tag{"expiration", fmt.Sprint(expires.Unix())})
		}
		e := &nostr.Event{Kind: 1, Tags: tags, CreatedAt: nostr.Timestamp(created.Unix())}
		if p.prunable(created, received, expires, now) && p.event(e, 0, now) == nil {
			t.Fatalf("pruned and admitted again: created %s, received %s, kept %s", created, received, p.Retention)
		}
	})
}

func TestFilters(t *testing.T) {
	own, friend := relaytest.NewKey(t), relaytest.NewKey(t)
	p := allows(own, friend)
	filters := p.filters()
	for _, kind := range []int{1, 1059, 38000, 38099} {
		if !nip01.MatchesAny(filters, nip01.NewSubject(signed(t, friend, nostr.Event{Kind: kind, Tags: nostr.Tags{{"p", p.Own}}}))) {
			t.Errorf("kind %d is not asked for", kind)
		}
	}
	for _, kind := range []int{4, 5, 38100} {
		if nip01.MatchesAny(filters, nip01.NewSubject(signed(t, friend, nostr.Event{Kind: kind, Tags: nostr.Tags{{"p", p.Own}}}))) {
			t.Errorf("kind %d is asked for", kind)
		}
	}
	if slices.ContainsFunc(filters, func(f nip01.Filter) bool { return f.Since != nil }) {
		t.Error("the date of a gift wrap says nothing: there must be no since")
	}
}

// A relay gives the newest events for each filter. However many events strangers send, a filter asks for
// the messages of trusted keys alone; those of strangers are asked for only if they may write.
func TestFiltersKeepStrangersApart(t *testing.T) {
	own, friend, stranger := relaytest.NewKey(t), relaytest.NewKey(t), relaytest.NewKey(t)
	many := make([]*identity.Key, maxAuthors+1)
	for i := range many {
		many[i] = friend
	}
	for name, c := range map[string]struct {
		trusted   []*identity.Key
		listed    []string
		strangers bool
		kinds     []int
		friend    int // filters that select a message of a trusted key
		apart     int // of these, those that do not select one of a stranger
		stranger  int
	}{
		"strangers may not write": {trusted: []*identity.Key{friend}, friend: 1, apart: 1},
		"strangers may write":     {trusted: []*identity.Key{friend}, strangers: true, friend: 2, apart: 1, stranger: 1},
		"a key that is none":      {trusted: []*identity.Key{friend}, listed: []string{"npub1x", strings.ToUpper(string(stranger.Public()))}, friend: 1, apart: 1},
		"no trusted keys":         {strangers: true, friend: 1, stranger: 1},
		"too many":                {trusted: many, friend: 1, stranger: 1},
		"only gift wraps":         {trusted: []*identity.Key{friend}, kinds: []int{nip01.KindGiftWrap}},
	} {
		p := allows(own, c.trusted...)
		p.Trusted = append(p.Trusted, c.listed...)
		p.Strangers = c.strangers
		if c.kinds != nil {
			p.Kinds = c.kinds
		}
		selects := func(f nip01.Filter, from *identity.Key, kind int) bool {
			return f.Matches(nip01.NewSubject(signed(t, from, nostr.Event{Kind: kind, Tags: nostr.Tags{{"p", p.Own}}})))
		}
		byFriend, apart, byStranger, wraps := 0, 0, 0, 0
		for _, f := range p.filters() {
			if _, err := nip01.ParseFromClient(nip01.Message(nip01.VerbReq, "x", f)); err != nil {
				t.Errorf("%s: a relay refuses the filter: %v", name, err)
			}
			fromFriend, fromStranger := selects(f, friend, 1), selects(f, stranger, 1)
			byFriend, byStranger = byFriend+one(fromFriend), byStranger+one(fromStranger)
			apart += one(fromFriend && !fromStranger)
			wraps += one(selects(f, stranger, nip01.KindGiftWrap))
		}
		if byFriend != c.friend || apart != c.apart || byStranger != c.stranger || wraps != 1 {
			t.Errorf("%s: of a friend %d, apart %d, of a stranger %d, gift wraps %d", name, byFriend, apart, byStranger, wraps)
		}
	}
}

func one(b bool) int {
	if b {
		return 1
	}
	return 0
}

func FuzzUnwrap(f *testing.F) {
	own, err := identity.KeyFromBytes([]byte("0123456789abcdef0123456789abcdef"))
	if err != nil {
		f.Fatal(err)
	}
	friend := relaytest.NewKey(f)
	r := rumor(friend, KindChat, "hello", own)
	seal := signed(f, friend, nostr.Event{Kind: nip01.KindSeal, Content: encrypt(f, friend, r.String(), own)})
	f.Add(seal.String())
	f.Add(r.String())
	f.Add(`{"kind":13}`)
	f.Fuzz(func(t *testing.T, text string) {
		message, err := unwrap(&nostr.Event{Kind: nip01.KindGiftWrap, PubKey: "once"}, &opened{text: text, key: own})
		if err != nil {
			return
		}
		seal, err := nip01.ParseEvent([]byte(text))
		if err != nil || nip01.Verify(seal) != nil || seal.PubKey != message.PubKey {
			t.Fatalf("a message of %s out of %q", message.PubKey, text)
		}
	})
}

// opened is a Decrypter: it "decrypts" each gift wrap to text, and the seal in it with key. With real
// encryption of each input, the coverage of the fuzzer would be random.
type opened struct {
	text string
	key  *identity.Key
}

func (o *opened) Decrypt(payload string, from identity.PublicKey) (string, error) {
	if from == "once" {
		return o.text, nil
	}
	return o.key.Decrypt(payload, from)
}
