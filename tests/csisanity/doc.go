// Command csisanity runs the suite of CSI drivers, csi-sanity of
// github.com/kubernetes-csi/csi-test, against shoal-csi-local: on disks with each file
// system that this machine can make, with volumes of each kind. Then it looks for what
// the driver has left, and measures how fast volumes are made and removed. Disks are
// files on loop devices in a mount namespace of the run's own, so that a run that is
// killed leaves no more than its directory. It writes results.txt.
package main
