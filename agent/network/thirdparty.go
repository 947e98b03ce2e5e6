package network

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/shoal-project/shoal/agent/netns"
	"github.com/shoal-project/shoal/cni/podnet"
)

// thirdParty runs the first valid network configuration of a directory, in the
// order of file names, as other container runtimes do.
type thirdParty struct {
	confDir, cacheDir string
	lib               *libcni.CNIConfig
	log               *slog.Logger
	request           time.Duration // Config's

	// verbs is held by who runs ADD or DEL, and for writing by GC, which the
	// specification wants alone (section 3, "Lifecycle & Ordering").
	verbs sync.RWMutex

	mu   sync.Mutex
	read time.Time // the directory's mtime when list was read
	list *libcni.NetworkConfigList
}

func newThirdParty(cfg Config, log *slog.Logger) *thirdParty {
	cache := defaultDir(cfg.CacheDir, "/var/lib/cni")
	return &thirdParty{
		confDir: cfg.ConfDir, cacheDir: cache, log: log, request: cmp.Or(cfg.Request, requestTime),
		lib: libcni.NewCNIConfigWithCacheDir([]string{defaultDir(cfg.BinDir, "/opt/cni/bin")}, cache, &programs{}),
	}
}

// current returns the configuration, nil when there is none. It reads the
// directory again only when it changed; a file that is written in place is
// noticed once its name or neighbours change, so installers rename, as they do.
func (t *thirdParty) current() *libcni.NetworkConfigList {
	if t.confDir == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	fi, err := os.Stat(t.confDir)
	if err != nil {
		t.list, t.read = nil, time.Time{}
		return nil
	}
	// A second change within the clock's grain would go unseen: look again.
	if fi.ModTime().Equal(t.read) && time.Since(t.read) > time.Second {
		return t.list
	}
	list, broken := t.load()
	if list == nil && broken {
		list = t.list // half written, as may be
	}
	if list != nil && (t.list == nil || t.list.Name != list.Name) {
		t.log.Info("using third-party pod network", "name", list.Name, "dir", t.confDir)
	}
	t.list, t.read = list, fi.ModTime()
	return list
}

// again has the directory read whatever its time says: a file in it changed.
func (t *thirdParty) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.read = time.Time{}
}

// load reads the first valid file. Without one, broken tells whether there is any.
func (t *thirdParty) load() (list *libcni.NetworkConfigList, broken bool) {
	files, err := libcni.ConfFiles(t.confDir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		t.log.Warn("cannot list network configurations", "dir", t.confDir, "err", err)
		return nil, true
	}
	for _, f := range files {
		list, err := loadFile(f)
		if err != nil {
			t.log.Warn("skipping network configuration", "file", f, "err", err)
			broken = true
			continue
		}
		return list, false
	}
	return nil, broken
}

func loadFile(file string) (*libcni.NetworkConfigList, error) {
	var list *libcni.NetworkConfigList
	var err error
	if strings.HasSuffix(file, ".conflist") {
		list, err = libcni.NetworkConfFromFile(file)
	} else {
		var conf *libcni.PluginConfig
		if conf, err = libcni.ConfFromFile(file); err == nil {
			list, err = libcni.ConfListFromConf(conf)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(list.Plugins) == 0 {
		return nil, errors.New("it lists no plugins")
	}
	return list, nil
}

func runtimeConf(s podnet.Sandbox) *libcni.RuntimeConf {
	rt := &libcni.RuntimeConf{
		ContainerID: s.ID, NetNS: s.NetNS, IfName: s.IfName,
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", s.Namespace}, {"K8S_POD_NAME", s.Name},
			{"K8S_POD_INFRA_CONTAINER_ID", s.ID}, {"K8S_POD_UID", s.UID},
		},
		CapabilityArgs: map[string]any{"io.kubernetes.cri.pod-annotations": s.Annotations},
	}
	if len(s.HostPorts) > 0 {
		rt.CapabilityArgs["portMappings"] = s.HostPorts
	}
	if s.Bandwidth != (podnet.Bandwidth{}) {
		rt.CapabilityArgs["bandwidth"] = s.Bandwidth
	}
	return rt
}

func (t *thirdParty) add(ctx context.Context, list *libcni.NetworkConfigList, s podnet.Sandbox) ([]netip.Addr, error) {
	if err := netns.Do(s.NetNS, netns.LoopbackUp); err != nil {
		return nil, fmt.Errorf("bring up loopback: %w", err)
	}
	rt := runtimeConf(s)
	// A cached answer means that ADD was done for this very sandbox.
	if res, err := t.lib.GetNetworkListCachedResult(list, rt); err == nil && res != nil {
		if addrs, err := addrsOf(res); err == nil && len(addrs) > 0 {
			return addrs, nil
		}
	}
	addrs, err := t.addresses(ctx, list, rt)
	if err == nil && len(addrs) == 0 {
		err = errors.New("the result holds no address")
	}
	if err != nil {
		return nil, fmt.Errorf("plugin network %q: %w", list.Name, err)
	}
	return addrs, nil
}

// addresses runs ADD.
func (t *thirdParty) addresses(ctx context.Context, list *libcni.NetworkConfigList,
	rt *libcni.RuntimeConf) (addrs []netip.Addr, err error) {
	defer malformed(&err)
	ctx, cancel := context.WithTimeout(ctx, 2*t.request)
	defer cancel()
	t.verbs.RLock()
	defer t.verbs.RUnlock()
	res, err := t.lib.AddNetworkList(ctx, list, rt)
	if err != nil {
		return nil, err
	}
	return addrsOf(res)
}

// malformed makes an error of the library's panic: it follows null entries of
// the lists in a plugin's answer.
func malformed(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("read result: a plugin's answer is malformed: %v", p)
	}
}

// addrsOf returns the addresses of the pod's interface.
func addrsOf(res types.Result) (addrs []netip.Addr, err error) {
	defer malformed(&err)
	r, err := types100.NewResultFromResult(res)
	if err != nil {
		return nil, fmt.Errorf("read result: %w", err)
	}
	for _, ip := range r.IPs {
		if ip == nil {
			continue
		}
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i] != nil &&
			r.Interfaces[*i].Name != podnet.Interface {
			continue
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			addrs = append(addrs, a.Unmap())
		}
	}
	return addrs, nil
}

// del runs DEL, with the configuration of then, for every network that the
// sandbox was added to. ns is where its namespace is now, "" for where it was.
func (t *thirdParty) del(ctx context.Context, id, ns string) error {
	as, err := t.attachments(id)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range as {
		if ns != "" {
			a.NetNS = ns
		}
		errs = append(errs, t.delAttachment(ctx, a))
	}
	return errors.Join(errs...)
}

func (t *thirdParty) delAttachment(ctx context.Context, a *libcni.NetworkAttachment) error {
	list, err := libcni.NetworkConfFromBytes(a.Config)
	if err != nil {
		return fmt.Errorf("cached configuration of network %q: %w", a.Network, err)
	}
	ns := a.NetNS
	if !netns.Exists(ns) {
		ns = "" // gone: CNI's DEL must do without (SPEC.md, section 2)
	}
	rt := &libcni.RuntimeConf{
		ContainerID: a.ContainerID, NetNS: ns, IfName: a.IfName, Args: a.CniArgs, CapabilityArgs: a.CapabilityArgs,
	}
	ctx, cancel := context.WithTimeout(ctx, t.request)
	defer cancel()
	t.verbs.RLock()
	defer t.verbs.RUnlock()
	if err := t.lib.DelNetworkList(ctx, list, rt); err != nil {
		return fmt.Errorf("plugin network %q: %w", a.Network, err)
	}
	return nil
}

// attachments reads libcni's cache; the cheap test first, since most nodes have none.
func (t *thirdParty) attachments(id string) ([]*libcni.NetworkAttachment, error) {
	if _, err := os.Stat(filepath.Join(t.cacheDir, "results")); err != nil {
		return nil, nil
	}
	as, err := t.lib.GetCachedAttachments(id)
	if err != nil {
		return nil, fmt.Errorf("read network cache: %w", err)
	}
	return as, nil
}

// usable tells whether a network's plugins are there and say that it can connect pods.
func (t *thirdParty) usable(ctx context.Context, list *libcni.NetworkConfigList) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if _, err := t.lib.ValidateNetworkList(ctx, list); err != nil {
		return fmt.Errorf("plugin network %q: %w", list.Name, err)
	}
	return t.status(ctx, list)
}

// has tells whether a third party's network connected the sandbox.
func (t *thirdParty) has(id string) bool {
	as, err := t.attachments(id)
	return err == nil && len(as) > 0
}

func (t *thirdParty) check(ctx context.Context, id string) error {
	as, err := t.attachments(id)
	if err != nil {
		return err
	}
	if len(as) == 0 {
		return fmt.Errorf("sandbox %s has no network", id)
	}
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	for _, a := range as {
		list, err := libcni.NetworkConfFromBytes(a.Config)
		if err != nil {
			return fmt.Errorf("cached configuration of network %q: %w", a.Network, err)
		}
		rt := &libcni.RuntimeConf{
			ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.CniArgs,
			CapabilityArgs: a.CapabilityArgs,
		}
		if err := t.lib.CheckNetworkList(ctx, list, rt); err != nil && !errors.Is(err, libcni.ErrorCheckNotSupp) {
			return fmt.Errorf("plugin network %q: %w", a.Network, err)
		}
	}
	return nil
}

// errInUse says that GC has to wait for an ADD or a DEL.
var errInUse = errors.New("plugins are at work")

// lost runs DEL for what was connected and belongs to no live sandbox.
func (t *thirdParty) lost(ctx context.Context, live func() []string) error {
	as, err := t.attachments("")
	if err != nil || len(as) == 0 {
		return err
	}
	keep := live() // after: what is connected meanwhile is not in as
	var errs []error
	for _, a := range as {
		if !slices.Contains(keep, a.ContainerID) && ctx.Err() == nil {
			errs = append(errs, t.delAttachment(ctx, a))
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// gc tells the plugins which attachments there are, so that they free what they have
// of others. live lists the sandboxes once nothing is being connected any more. It
// does not wait for plugins at work, since those of other pods would wait behind it.
func (t *thirdParty) gc(ctx context.Context, list *libcni.NetworkConfigList, live func() []string) error {
	if !t.verbs.TryLock() {
		return errInUse
	}
	defer t.verbs.Unlock()
	args := &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}} // none, not null
	for _, id := range live() {
		valid := types.GCAttachment{ContainerID: id, IfName: podnet.Interface}
		args.ValidAttachments = append(args.ValidAttachments, valid)
	}
	if err := t.lib.GCNetworkList(ctx, list, args); err != nil {
		return fmt.Errorf("plugin network %q: %w", list.Name, err)
	}
	return nil
}

func (t *thirdParty) status(ctx context.Context, list *libcni.NetworkConfigList) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	if err := t.lib.GetStatusNetworkList(ctx, list); err != nil {
		var e *types.Error
		if errors.As(err, &e) {
			b, _ := json.Marshal(e)
			t.log.Debug("pod network is not ready", "name", list.Name, "answer", string(b))
		}
		return fmt.Errorf("plugin network %q: %w", list.Name, err)
	}
	return nil
}
