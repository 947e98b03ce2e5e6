package volume

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/shoal-project/shoal/agent/beneath"
	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/csi"
)

// Measured is what a pod's volume holds: one behind a claim, or one of the pod's own
// that a storage driver or a server has. Then it has no claim.
type Measured struct {
	Claimed
	Pod Owner
	// Name is the pod's for the volume.
	Name string
	// Ephemeral: it lies on the node's disk and ends with its pod; then InodesUsed is the
	// number of its files.
	Ephemeral  bool
	InodesUsed uint64
	// Use is nil where nobody tells it; of a device its size alone is known.
	Use *host.FileSystem
	// Abnormal is whether the driver says that something is wrong, nil where it
	// says nothing of it, or Manager.Health is not set.
	Abnormal *bool
	At       time.Time
}

const (
	// measuredFor is how long what a driver measured is told.
	measuredFor = time.Minute
	// measureWait is how long an answer waits for drivers; what comes later is told
	// the next time.
	measureWait = 2 * time.Second
)

// sample is the last measurement of a volume by its driver.
type sample struct {
	Measured
	busy chan struct{} // closed when the driver has answered
}

// Measure measures volumes: file systems by the kernel, those of storage drivers by
// these, those that share the node's disk or memory by their files. Drivers and servers may
// be away, and a walk may take long: they are not waited for long.
func (m *Manager) Measure(ctx context.Context) []Measured {
	var out []Measured
	var drivers []*Volume
	m.mu.Lock()
	for _, e := range m.pods {
		for _, v := range e.volumes {
			switch {
			case v.Path == "":
			case v.ofStorageDriver(), v.Driver == nfsRow, v.walked():
				drivers = append(drivers, v)
			case v.Persistent != nil && v.Persistent.Spec.ClaimRef != nil && !v.block():
				out = append(out, v.measured())
			}
		}
	}
	m.mu.Unlock()
	for i := range out {
		if has, err := host.Space(out[i].Path); err == nil {
			out[i].Use = &has
		}
	}
	return append(out, m.askDrivers(ctx, drivers)...)
}

// measured names a volume, before anything is measured.
func (v *Volume) measured() Measured {
	out := Measured{Claimed: Claimed{Path: v.Path}, Pod: v.Pod, Name: v.Volume.Name, At: time.Now(),
		Ephemeral: v.Driver == emptyDirRow && !v.inMemory()}
	if v.Persistent != nil && v.Persistent.Spec.ClaimRef != nil {
		out.Namespace, out.Claim = v.Persistent.Spec.ClaimRef.Namespace, v.Persistent.Spec.ClaimRef.Name
	}
	return out
}

// askDrivers returns what drivers said within a minute, or say soon.
func (m *Manager) askDrivers(ctx context.Context, list []*Volume) []Measured {
	ctx, cancel := context.WithTimeout(ctx, measureWait)
	defer cancel()
	var out []Measured
	samples := map[string]*sample{}
	m.mu.Lock()
	for _, v := range list {
		samples[v.key()] = m.sample(v)
	}
	m.samples = samples // those of volumes that are gone are forgotten
	m.mu.Unlock()
	for _, s := range samples {
		select {
		case <-s.busy:
		case <-ctx.Done():
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range samples {
		if s.Use != nil || s.Abnormal != nil {
			out = append(out, s.Measured)
		}
	}
	return out
}

// sample is the one of a volume, asked for anew when it is old. The lock is held.
func (m *Manager) sample(v *Volume) *sample {
	old := m.samples[v.key()]
	if old != nil {
		select {
		case <-old.busy:
		default:
			return old // the driver is asked already
		}
		if time.Since(old.At) < measuredFor {
			return old
		}
	}
	s := &sample{Measured: v.measured(), busy: make(chan struct{})}
	ask := func() (csi.Stats, error) { return spaceOf(s.Path) }
	if v.ofStorageDriver() {
		path, driver, handle := m.driverPath(v), csiOf(v.Source).driver, v.handle()
		ask = func() (csi.Stats, error) { return m.statsOf(driver, handle, path) }
	}
	pod := m.pods[v.Pod.UID].pod
	if v.walked() {
		ask = func() (csi.Stats, error) { return m.filesOf(pod, v) }
	}
	m.asking.Go(func() {
		defer close(s.busy)
		stats, err := ask()
		if err != nil {
			return
		}
		if !m.Health {
			stats.Condition = nil
		}
		if c := stats.Condition; c != nil && c.Abnormal {
			m.tellAbnormal(pod, s.Name, c)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		s.take(stats)
	})
	return s
}

// walked tells whether a volume is measured by its files.
func (v *Volume) walked() bool { return v.Driver == emptyDirRow || v.Driver == projectedRow }

// inMemory tells whether an emptyDir takes memory, or huge pages, not disk.
func (v *Volume) inMemory() bool {
	return v.Volume.EmptyDir != nil && v.Volume.EmptyDir.Medium != corev1.StorageMediumDefault
}

// filesOf measures what a volume has of a file system.
func (m *Manager) filesOf(pod *corev1.Pod, v *Volume) (csi.Stats, error) {
	out, err := spaceOf(v.Path)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), measuredFor)
	defer cancel()
	bytes, inodes, err := beneath.Usage(ctx, v.Path)
	if err != nil {
		return out, err
	}
	if counted, ok := m.Used(pod, v.Volume.Name); ok {
		bytes = counted
	}
	out.Bytes.Used, out.Inodes.Used = bytes, inodes
	return out, nil
}

// spaceOf asks the kernel, which asks a server: that may take for ever.
func spaceOf(path string) (csi.Stats, error) {
	has, err := host.Space(path)
	if err != nil {
		return csi.Stats{}, err
	}
	return csi.Stats{
		Bytes:  &csi.Amount{Total: int64(has.Bytes), Used: int64(has.Used), Available: int64(has.Available)},
		Inodes: &csi.Amount{Total: int64(has.Inodes), Available: int64(has.InodesFree)},
	}, nil
}

// watchHealth asks drivers each minute how their volumes are, so that events tell.
func (m *Manager) watchHealth(ctx context.Context) {
	each := time.NewTicker(measuredFor)
	defer each.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-each.C:
		}
		m.Measure(ctx)
	}
}

// TellHealth asks a driver how its volumes here are, also without Health, and has events
// of their pods tell what is wrong.
func (m *Manager) TellHealth(driver string) {
	type mounted struct {
		pod          *corev1.Pod
		name         string
		handle, path string
	}
	var list []mounted
	m.mu.Lock()
	for _, e := range m.pods {
		for _, v := range e.volumes {
			if v.Path != "" && v.ofStorageDriver() && csiOf(v.Source).driver == driver {
				list = append(list, mounted{e.pod, v.Volume.Name, v.handle(), m.driverPath(v)})
			}
		}
	}
	m.mu.Unlock()
	for _, v := range list {
		stats, err := m.statsOf(driver, v.handle, v.path)
		if c := stats.Condition; err == nil && c != nil && c.Abnormal {
			m.tellAbnormal(v.pod, v.name, c)
		}
	}
}

func (m *Manager) tellAbnormal(pod *corev1.Pod, volume string, c *csi.Condition) {
	m.tell(pod, corev1.EventTypeWarning, "VolumeConditionAbnormal", "Volume %s: %s", volume, c.Message)
}

// driverPath is where the driver shows a volume.
func (m *Manager) driverPath(v *Volume) string {
	if v.block() {
		return csiBlockDriver{csiDriver{root: m.RootDir}}.target(v)
	}
	return v.Path
}

// statsOf asks a driver, which has the time of a call for that.
func (m *Manager) statsOf(driver, handle, path string) (csi.Stats, error) {
	client, err := m.storageDrivers().Client(driver)
	if err != nil {
		return csi.Stats{}, err
	}
	can, err := client.Capabilities(context.Background())
	if err != nil || !can.Measures {
		return csi.Stats{}, err
	}
	return client.Stats(context.Background(), handle, path)
}

// take notes what a driver told. Numbers below 0 are nobody's.
func (s *sample) take(stats csi.Stats) {
	if b := stats.Bytes; b != nil {
		s.Use = &host.FileSystem{Bytes: natural(b.Total), Used: natural(b.Used), Available: natural(b.Available)}
		if i := stats.Inodes; i != nil {
			s.Use.Inodes, s.Use.InodesFree, s.InodesUsed = natural(i.Total), natural(i.Available), natural(i.Used)
		}
	}
	if c := stats.Condition; c != nil {
		s.Abnormal = &c.Abnormal
	}
}

func natural(n int64) uint64 { return uint64(max(0, n)) }
