package proc

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The processes of a started process are found from the top down. Every descendant is below the
// started process itself or, if a parent has died, below an adoptee: agentinit becomes the parent
// of every orphan (PID 1, or PR_SET_CHILD_SUBREAPER). So evidence is needed for one question only:
// to which program does an adoptee belong? This is asked once for each adoptee. Its pid cannot be
// reused meanwhile, because only agentinit can reap it. No walk over all of /proc is needed.

// adoptee is a child of agentinit that the Owner did not start.
type adoptee struct {
	pending bool     // its program is not known yet
	owner   *process // nil: it belongs to no program, as far as is known
}

// seenTask remembers from a listing during a kill to which process a member belongs. If its parent
// dies next, this is enough evidence.
type seenTask struct {
	start uint64
	owner *process
}

// lookForAdoptees lists agentinit's children and notes the new ones: orphans, and processes that a
// program made with CLONE_PARENT. A start that is not registered yet may be among them, see
// register. The caller holds the mutex.
func (o *Owner) lookForAdoptees() {
	o.lookedAt = time.Now()
	defer func() { o.lookTook = time.Since(o.lookedAt) }()
	for _, pid := range o.ownChildren() {
		if o.byPID[pid] != nil || o.adopted[pid] != nil {
			continue
		}
		o.adopted[pid] = &adoptee{pending: true}
		o.fresh = append(o.fresh, pid)
		o.pending++
	}
}

func (o *Owner) ownChildren() []int {
	if pids, ok := o.children.list(); ok {
		return pids
	}
	byParent, err := allProcesses()
	if err != nil {
		return nil // without /proc, escaped processes cannot be found
	}
	return byParent[o.selfPID]
}

// dropAdoptee forgets an adoptee. The caller holds the mutex.
func (o *Owner) dropAdoptee(pid int, a *adoptee) {
	delete(o.adopted, pid)
	if a.pending {
		if o.pending--; o.pending == 0 {
			for p := range o.lingering {
				o.dirty = append(o.dirty, p)
			}
		}
	}
	p := a.owner
	if p == nil {
		return
	}
	p.adopted--
	if p.reaped && (p.adopted == 0 || p.scope == ScopeGroup) {
		o.dirty = append(o.dirty, p)
	}
}

// disown leaves the adoptees of p without owner. The caller holds the mutex.
func (o *Owner) disown(p *process) {
	if p.adopted == 0 {
		return
	}
	for _, a := range o.adopted {
		if a.owner == p {
			a.owner = nil
		}
	}
	p.adopted = 0
}

func (o *Owner) kickSweep() {
	select {
	case o.sweepC <- struct{}{}:
	default:
	}
}

// sweepLoop does what the reaper must not wait for: it reads about other processes.
func (o *Owner) sweepLoop() {
	for {
		select {
		case <-o.sweepC:
			o.sweep()
		case <-o.stop:
			return
		}
	}
}

func (o *Owner) removeCgroups() {
	o.mu.Lock()
	empty := o.emptyCgroups
	o.emptyCgroups = nil
	o.mu.Unlock()
	for _, c := range empty {
		c.remove()
	}
}

func (o *Owner) sweep() {
	o.removeCgroups()
	o.attributeFresh()
	o.signalOthers()
	var groups []*process
	o.mu.Lock()
	for p := range o.lingering {
		switch {
		case o.pending > 0: // the goroutine that reads about those wakes the sweeper again
		case p.adopted == 0:
			o.finish(p)
		case p.scope == ScopeGroup:
			groups = append(groups, p)
		default:
			p.rouse()
		}
	}
	o.mu.Unlock()
	for _, p := range groups {
		left := p.inScope(o.tree(p), p.scope)
		o.mu.Lock()
		if len(left) == 0 {
			o.finish(p)
		} else {
			p.rouse()
		}
		o.mu.Unlock()
	}
}

// attributeFresh finds out to which programs the new adoptees belong. It reads without the mutex: a
// pid cannot be reused while its adoptee is in the table, and attributeFresh checks that
// afterwards. When it returns, every adoptee that was in the table before the call has been
// examined, perhaps by another caller.
func (o *Owner) attributeFresh() {
	o.attributing.Lock()
	defer o.attributing.Unlock()
	o.mu.Lock()
	pids := o.fresh
	o.fresh = nil
	asked := make(map[int]*adoptee, len(pids))
	for _, pid := range pids {
		if a := o.adopted[pid]; a != nil && a.pending {
			asked[pid] = a
		}
	}
	o.mu.Unlock()
	if len(asked) == 0 {
		return
	}
	owners := o.findOwners(asked)

	o.mu.Lock()
	defer o.mu.Unlock()
	attributed := 0
	for pid, a := range asked {
		if o.adopted[pid] != a || !a.pending {
			continue
		}
		a.pending = false
		o.pending--
		if p := owners[pid]; p != nil && !p.gone {
			a.owner = p
			p.adopted++
			o.lookForOthers(p)
			attributed++
		}
	}
	// Whatever has ended before it was attributed may have left a child of its own. Without this
	// listing the sweeper would take the tree for empty.
	if attributed < len(pids) {
		o.lookForAdoptees()
	}
	if len(o.lingering) > 0 {
		o.kickSweep()
	}
}

func (o *Owner) findOwners(asked map[int]*adoptee) map[int]*process {
	owners := map[int]*process{}
	var unsure []int
	for pid := range asked {
		st, err := readStat(pid)
		if err != nil {
			continue
		}
		if p := o.ownerByKernel(&st); p != nil {
			owners[pid] = p
		} else if !isDead(pid) { // its first thread may have ended: see partlyDead
			unsure = append(unsure, pid)
		}
	}
	if len(unsure) == 0 {
		return owners
	}
	tags := o.tags.tags(unsure)
	for _, pid := range unsure {
		owners[pid] = o.ownerByTraces(pid, tags[pid])
	}
	return owners
}

// ownerByKernel uses only evidence that a process cannot forge.
func (o *Owner) ownerByKernel(st *statInfo) *process {
	cg := o.cgroups().idOf(st.pid)
	marks := readMarks(st.pid)
	o.mu.Lock()
	defer o.mu.Unlock()
	// The mark comes first. Root without capabilities may be able to enter the cgroup of another
	// program, but a guarded program cannot change its mark.
	if p := o.marked(marks); p != nil {
		return p
	}
	if p := o.byID[cg]; p != nil {
		return p
	}
	if p := o.bySID[st.sid]; p != nil {
		return p
	}
	if p := o.bySID[st.pgrp]; p != nil {
		return p
	}
	if p := o.mains[st.pid]; p != nil && p.main.start == st.start {
		return p
	}
	if s, ok := o.seen[st.pid]; ok && s.start == st.start {
		return s.owner
	}
	return nil
}

// ownerByTraces uses what a process inherits: the tag in its environment and the pipes it was
// given. If neither can be read, it uses the user of the process, provided that only one started
// process runs as that user.
func (o *Owner) ownerByTraces(pid int, t tagAnswer) *process {
	if p := o.ownerByTag(t.tag); p != nil {
		return p
	}
	pipes := readPipes(livingThread(pid))
	o.mu.Lock()
	for _, inode := range pipes {
		if p := o.byPipe[inode]; p != nil {
			o.mu.Unlock()
			return p
		}
	}
	o.mu.Unlock()
	if t.read {
		return nil
	}
	return o.onlyOneOfUser(pid)
}

func (o *Owner) ownerByTag(tag string) *process {
	if o.tagPrefix != "" {
		var ok bool
		if tag, ok = strings.CutPrefix(tag, o.tagPrefix+"/"); !ok {
			return nil
		}
	}
	// An Owner further down has appended its own tag.
	tag, _, _ = strings.Cut(tag, "/")
	text, token, _ := strings.Cut(tag, ".")
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if p := o.byID[id]; p != nil && p.token == token {
		return p
	}
	return nil
}

func (o *Owner) onlyOneOfUser(pid int) *process {
	uid, ok := ownerUID(pid)
	if !ok || int(uid) == os.Geteuid() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var only *process
	for _, p := range o.byID {
		if p.uid == nil || *p.uid != uid {
			continue
		}
		if only != nil {
			return nil
		}
		only = p
	}
	return only
}

// task is one member of a tree when it was listed.
type task struct {
	statInfo
	child bool // a child of agentinit: only the Owner can free its pid
}

// tree lists the living members of p. Processes change during the listing. A caller that must have
// them all stops them and lists again.
func (o *Owner) tree(p *process) []task { return o.treeSince(p, time.Now()) }

// treeSince is tree with a listing of agentinit's children that began after since.
func (o *Owner) treeSince(p *process, since time.Time) []task { return descend(o.rootsSince(p, since)) }

// rootsSince lists those members of p that are agentinit's children: the process itself while it
// lives, and the orphans of its tree. A listing of agentinit's children that began after since is
// reused. If a thousand programs are signalled together, one listing is enough; a thousand listings
// would delay a shutdown too much.
func (o *Owner) rootsSince(p *process, since time.Time) []task {
	o.mu.Lock()
	if !o.lookedAt.After(since) {
		o.lookForAdoptees()
	}
	pending := o.pending > 0
	o.mu.Unlock()
	if pending {
		o.attributeFresh()
	}
	var pids []int
	orphans := map[int]*adoptee{}
	o.mu.Lock()
	if !p.reaped {
		pids = append(pids, p.pid)
	}
	if p.adopted > 0 {
		for pid, a := range o.adopted {
			if a.owner == p {
				pids, orphans[pid] = append(pids, pid), a
			}
		}
	}
	o.mu.Unlock()
	return o.rootsAmong(p, tasksOf(pids), orphans)
}

// rootsAmong keeps the tasks that are still what their pids named before they were read: the process
// itself and its orphans. The others were reaped, and their pids may be those of other programs.
func (o *Owner) rootsAmong(p *process, tasks []task, orphans map[int]*adoptee) []task {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.DeleteFunc(tasks, func(t task) bool {
		if a := orphans[t.pid]; a != nil {
			return o.adopted[t.pid] != a
		}
		return p.reaped
	})
}

// tasksOf reads about children of agentinit.
func tasksOf(pids []int) (tasks []task) {
	for _, pid := range pids {
		if st, err := readStat(pid); err == nil {
			tasks = append(tasks, task{st, true})
		}
	}
	return tasks
}

// descend lists the living processes among the roots and below them.
func descend(roots []task) []task { return alive(withZombies(roots)) }

// withZombies lists the processes among the roots and below them, also those that have ended and whose parent has not
// waited for them.
func withZombies(roots []task) []task {
	tasks := slices.Clone(roots)
	known := map[int]bool{}
	for i := 0; i < len(tasks); i++ {
		known[tasks[i].pid] = true
		listed := uptimeTicks()
		kids, ok := childrenOf(&tasks[i].statInfo)
		if !ok {
			return descendSlowly(roots)
		}
		for _, st := range stillListed(&tasks[i].statInfo, kids, listed) {
			if !known[st.pid] {
				known[st.pid] = true
				tasks = append(tasks, task{st, false})
			}
		}
	}
	return tasks
}

// stillListed reads about the children that a list from the time listed names, in clock ticks since the
// boot of the machine. A process that has ended since may have left its pid to one of another program:
// the parent itself, then the list is of that one, or a child, then what is read is about that one.
func stillListed(parent *statInfo, kids []int, listed uint64) (children []statInfo) {
	for _, pid := range kids {
		// A child that has another parent now is the one of the list if it is older than the list.
		if st, err := readStat(pid); err == nil && (st.ppid == parent.pid || st.start < listed) {
			children = append(children, st)
		}
	}
	if len(children) == 0 {
		return nil
	}
	// The parent is looked at last: it was the one with that pid when each child named it.
	if st, err := readStat(parent.pid); err != nil || st.start != parent.start {
		return nil
	}
	return children
}

func descendSlowly(roots []task) []task {
	listed := uptimeTicks()
	byParent, err := allProcesses()
	if err != nil {
		return nil
	}
	return below(roots, byParent, listed)
}

// below adds to the roots what is below them according to a list of all processes from the time listed.
func below(roots []task, byParent map[int][]int, listed uint64) []task {
	tasks := slices.Clone(roots)
	for i := 0; i < len(tasks); i++ {
		parent, since := &tasks[i].statInfo, listed
		if parent.start >= listed {
			since = 0 // the list may hold children of the process that had its pid before
		}
		for _, st := range stillListed(parent, byParent[parent.pid], since) {
			tasks = append(tasks, task{st, false})
		}
		delete(byParent, parent.pid)
	}
	return tasks
}

func alive(tasks []task) []task {
	return slices.DeleteFunc(tasks, func(t task) bool { return t.dead() })
}

// inScope keeps the tasks that a signal with that scope is meant for.
func (p *process) inScope(tasks []task, scope Scope) []task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t task) bool {
		return scope == ScopeProcess && t.pid != p.pid || scope == ScopeGroup && t.pgrp != p.pid
	})
}
