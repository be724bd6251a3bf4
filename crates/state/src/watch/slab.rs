//! A table of values that are accessed by small handles. Slots of removed values are reused. A
//! handle may outlive its value. A lookup then returns `None`, even if the slot contains another
//! value.

/// Identifies a value in a [`Slab`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Handle {
    position: u32,
    generation: u32,
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

/// A growing table of slots, in which freed slots are reused.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(super) fn insert(&mut self, value: T) -> Handle {
        if let Some(position) = self.free.pop() {
            let place = &mut self.places[position as usize];
            assert!(
                place.value.is_none(),
                "a slot is reused only after its value is removed: otherwise two handles would refer to the same slot"
            );
            place.value = Some(value);
            return Handle { position, generation: place.generation };
        }
        let position = u32::try_from(self.places.len()).expect("a slab has fewer than 2^32 values");
        self.places.push(Place { generation: 0, value: Some(value) });
        Handle { position, generation: 0 }
    }

    pub(super) fn get(&self, handle: Handle) -> Option<&T> {
        let place = self.places.get(handle.position as usize)?;
        place.value.as_ref().filter(|_| place.generation == handle.generation)
    }

    pub(super) fn get_mut(&mut self, handle: Handle) -> Option<&mut T> {
        let place = self.places.get_mut(handle.position as usize)?;
        place.value.as_mut().filter(|_| place.generation == handle.generation)
    }

    pub(super) fn remove(&mut self, handle: Handle) -> Option<T> {
        let place = self.places.get_mut(handle.position as usize)?;
        if place.generation != handle.generation {
            return None;
        }
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(handle.position);
        Some(value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Handle, &T)> {
        self.places.iter().enumerate().filter_map(|(position, place)| {
            let position = u32::try_from(position).expect("a slab has fewer than 2^32 values");
            let handle = Handle { position, generation: place.generation };
            place.value.as_ref().map(|value| (handle, value))
        })
    }
}
