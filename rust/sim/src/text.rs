//! The text that every simulated request answers with, starting at some word and wrapping around.

/// Natural English, so that tokens have natural lengths and the detokeniser natural work.
pub const TEXT: &str = "\
The stove in the corner of the workshop was older than anyone who used it. On cold mornings the \
first person to arrive would open the iron door, push yesterday's ash through the grate and lay three \
thin splints of birch across a handful of shavings. A single match was enough. By the time the others \
had hung up their coats, the room smelled of resin and warm dust, and the kettle on the lid had begun \
to tick. Nobody had ever written down how to look after the stove, yet everybody did it in the same \
way, because the stove itself taught them: give it too much and it smoked, give it too little and it \
went out before noon.

Mara liked to say that a good fire is mostly patience. \"You can't hurry it,\" she warned each new \
apprentice, \"but you can get out of its way.\" She would then point at the small brass lever on the \
flue, which had two positions and no label. Half open, the fire drew slowly and lasted until lunch; \
fully open, it roared for twenty minutes and ate a whole basket of wood. In her first winter she had \
burned 140 baskets. Last year, with the same four rooms to heat, she needed only 62.

There were other lessons in it. Wood that had lain two summers under the eaves gave twice the warmth of \
wood cut in spring, so the shed was filled long before anyone needed it. The ash went on the garden \
paths, where it kept the ice away. When the wind came from the north-east the chimney sang, a low note \
that rose and fell like someone humming in the next room, and old Tobias would look up from his bench \
and say, quite seriously, that it was asking for larch. He was usually right. Then the talk would turn \
to the weather, to the price of nails (up again!), to a customer's chair with one leg shorter than the \
other three, and the morning would be gone.

In the evening the last one to leave closed the lever, counted the embers and wrote the number in chalk \
on the wall: seven, nine, twelve. It meant nothing in particular. But whoever came in first the next \
day always read it before striking the match, and somehow it felt like being wished good luck. ";
