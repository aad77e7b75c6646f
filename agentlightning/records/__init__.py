"""Records: plain data above the nouns, made in one room and read in others. They know no store, no model and no
screen."""
