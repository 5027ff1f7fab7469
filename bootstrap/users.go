package bootstrap

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/dreamlab-ai/agentinit/internal/safeopen"
	"github.com/dreamlab-ai/agentinit/supervisor/program"
)

// maxUserDatabase bounds /etc/passwd and /etc/group.
const maxUserDatabase = 4 << 20

// Users maps names to ids. It holds the box's /etc/passwd and /etc/group (passwd(5), group(5)). It
// is immutable.
type Users struct {
	byName  map[string]user
	byID    map[uint32]user
	groups  map[string]uint32
	members map[string][]uint32 // user name → groups that list it
}

type user struct {
	name     string
	uid, gid uint32
	home     string
}

// LoadUsers reads the databases of the box. A missing file counts as empty, because numeric ids
// need no entry.
func LoadUsers(passwdFile, groupFile string) (*Users, error) {
	passwd, err1 := readDatabase(passwdFile)
	group, err2 := readDatabase(groupFile)
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	return ParseUsers(passwd, group), nil
}

func readDatabase(path string) ([]byte, error) {
	data, err := safeopen.ReadPlain(path, maxUserDatabase)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot read %s: %w", path, unwrapPath(err))
	}
	return data, nil
}

// ParseUsers reads the texts of the two files. Lines that are not entries are skipped, as in the C
// library. The first entry of a name or id counts.
func ParseUsers(passwd, group []byte) *Users {
	u := &Users{byName: map[string]user{}, byID: map[uint32]user{}, groups: map[string]uint32{}, members: map[string][]uint32{}}
	eachEntry(passwd, 7, func(f []string) {
		uid, okUID := parseID(f[2])
		gid, okGID := parseID(f[3])
		if !okUID || !okGID {
			return
		}
		entry := user{name: f[0], uid: uid, gid: gid, home: f[5]}
		setIfAbsent(u.byName, entry.name, entry)
		setIfAbsent(u.byID, uid, entry)
	})
	eachEntry(group, 4, func(f []string) {
		gid, ok := parseID(f[2])
		if !ok {
			return
		}
		setIfAbsent(u.groups, f[0], gid)
		for name := range strings.SplitSeq(f[3], ",") {
			if name != "" {
				u.members[name] = append(u.members[name], gid)
			}
		}
	})
	return u
}

func setIfAbsent[K comparable, V any](m map[K]V, k K, v V) {
	if _, taken := m[k]; !taken {
		m[k] = v
	}
}

func eachEntry(text []byte, fields int, f func([]string)) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxUserDatabase) // a group with thousands of members is one long line
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if parts := strings.Split(line, ":"); len(parts) >= fields && parts[0] != "" && !strings.HasPrefix(line, "#") {
			f(parts)
		}
	}
}

// parseID reads an id. 2^32-1 is not an id, because setuid-like calls use it as "do not change".
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err == nil && uint32(n) != ^uint32(0)
}

// Identity is the user and groups of a program, and the name and home directory for its
// environment.
type Identity struct {
	Credential program.Credential
	Name       string // user name; the number when there is no entry
	Home       string // "/" when there is no entry
}

// Resolve turns the names of the manifest into numbers. userSpec is a user name or number, or
// "user:group". An empty groupSpec means the user's own group; without an entry, that is the number
// of the user. If extra is nil, the supplementary groups are those that list the user.
func (u *Users) Resolve(userSpec, groupSpec string, extra []string) (Identity, error) {
	userSpec, inline, both := strings.Cut(userSpec, ":")
	if both && groupSpec == "" {
		groupSpec = inline
	}
	who, known, err := u.user(userSpec)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{Credential: program.Credential{UID: who.uid, GID: who.gid}, Name: who.name, Home: who.home}
	if extra == nil && known {
		id.Credential.Groups = slices.Clone(u.members[who.name])
	}
	if err := u.setGroups(&id.Credential, groupSpec, extra); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// setGroups makes first the group of the credential, unless it is empty, and adds the extra groups.
func (u *Users) setGroups(c *program.Credential, first string, extra []string) (err error) {
	if first != "" {
		if c.GID, err = u.Group(first); err != nil {
			return err
		}
	}
	for _, g := range extra {
		gid, err := u.Group(g)
		if err != nil {
			return err
		}
		c.Groups = append(c.Groups, gid)
	}
	slices.Sort(c.Groups)
	c.Groups = slices.Compact(c.Groups)
	return nil
}

func (u *Users) user(spec string) (user, bool, error) {
	if who, ok := u.byName[spec]; ok {
		return who, true, nil
	}
	uid, ok := parseID(spec)
	if !ok {
		return user{}, false, fmt.Errorf("there is no user %q; a number needs no entry", spec)
	}
	if who, ok := u.byID[uid]; ok {
		return who, true, nil
	}
	return user{name: spec, uid: uid, gid: uid, home: "/"}, false, nil
}

// Group is the number of a group, by name or number.
func (u *Users) Group(spec string) (uint32, error) {
	if gid, ok := u.groups[spec]; ok {
		return gid, nil
	}
	if gid, ok := parseID(spec); ok {
		return gid, nil
	}
	return 0, fmt.Errorf("there is no group %q; a number needs no entry", spec)
}
