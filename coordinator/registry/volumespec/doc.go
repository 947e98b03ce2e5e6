// Package volumespec holds the defaults and rules of a persistent volume's
// spec, which PersistentVolumes and VolumeAttachments share.
package volumespec
